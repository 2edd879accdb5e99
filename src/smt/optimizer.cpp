// Variables that no constraint names take their least value without Z3: objectives only grow with them. What Z3 answers is checked against the program before it
// is handed out, so a mistake of the solver cannot become a wrong size.
#include "smt/optimizer.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include <z3++.h>

namespace shardproof {

LinearSum& LinearSum::add(std::int32_t variable, std::int64_t coefficient) {
  const auto it = std::lower_bound(terms.begin(), terms.end(), variable, [](const auto& t, std::int32_t v) { return t.first < v; });
  if (it == terms.end() || it->first != variable) {
    if (coefficient != 0) terms.insert(it, {variable, coefficient});
    return *this;
  }
  it->second += coefficient;
  if (it->second == 0) terms.erase(it);
  return *this;
}

LinearSum& LinearSum::add(const LinearSum& other, std::int64_t factor) {
  for (const auto& [variable, coefficient] : other.terms) add(variable, coefficient * factor);
  constant += other.constant * factor;
  return *this;
}

std::int64_t LinearSum::value(const std::vector<std::int64_t>& values) const {
  std::int64_t sum = constant;
  for (const auto& [variable, coefficient] : terms) sum += coefficient * values[static_cast<std::size_t>(variable)];
  return sum;
}

namespace {

bool meets(const IntegerProgram& program, const std::vector<std::int64_t>& values) {
  for (std::size_t v = 0; v < values.size(); ++v) {
    if (values[v] < program.variables[v].first || values[v] > program.variables[v].second) return false;
  }
  return std::all_of(program.zero.begin(), program.zero.end(), [&](const LinearSum& s) { return s.value(values) == 0; }) &&
         std::all_of(program.notNegative.begin(), program.notNegative.end(), [&](const LinearSum& s) { return s.value(values) >= 0; }) &&
         std::all_of(program.among.begin(), program.among.end(), [&](const auto& a) {
           return std::find(a.second.begin(), a.second.end(), a.first.value(values)) != a.second.end();
         });
}

IntegerSolution solve(const IntegerProgram& program, bool wishes, unsigned milliseconds) {
  IntegerSolution solution;
  for (const auto& [low, high] : program.variables) solution.values.push_back(low);
  z3::context c;
  z3::optimize optimizer(c);
  z3::params params(c);
  params.set("timeout", milliseconds);
  params.set("priority", c.str_symbol("lex"));
  optimizer.set(params);
  std::vector<std::optional<z3::expr>> variables(program.variables.size());
  const auto number = [&](std::int64_t n) { return c.int_val(n); };
  const auto expression = [&](const LinearSum& sum) {
    z3::expr e = number(sum.constant);
    for (const auto& [v, coefficient] : sum.terms) {
      auto& variable = variables[static_cast<std::size_t>(v)];
      if (!variable) {
        variable = c.int_const(("n" + std::to_string(v)).c_str());
        const auto& [low, high] = program.variables[static_cast<std::size_t>(v)];
        optimizer.add(*variable >= number(low));
        optimizer.add(*variable <= number(high));
      }
      e = coefficient == 1 ? e + *variable : e + number(coefficient) * *variable;
    }
    return e;
  };
  for (const LinearSum& s : program.zero) optimizer.add(expression(s) == number(0));
  for (const LinearSum& s : program.notNegative) optimizer.add(expression(s) >= number(0));
  for (const auto& [sum, values] : program.among) {
    const z3::expr e = expression(sum);
    z3::expr any = c.bool_val(false);
    for (const std::int64_t v : values) any = any || e == number(v);
    optimizer.add(any);
  }
  if (wishes) {
    for (const LinearSum& s : program.apart) optimizer.add_soft(expression(s) != number(0), 1);
  }
  LinearSum objective;
  for (const auto& [v, coefficient] : program.objective.terms) {
    if (variables[static_cast<std::size_t>(v)]) objective.add(v, coefficient);
  }
  if (!objective.terms.empty()) optimizer.minimize(expression(objective));
  const z3::check_result result = optimizer.check();
  if (result != z3::sat) {
    solution.reason = result == z3::unsat ? "unsatisfiable" : "the optimizer gave up";
    return solution;
  }
  const z3::model model = optimizer.get_model();
  for (std::size_t v = 0; v < variables.size(); ++v) {
    if (!variables[v]) continue;
    std::int64_t value = 0;
    if (!model.eval(*variables[v], true).is_numeral_i64(value)) {
      solution.reason = "a size that does not fit 64 bits";
      return solution;
    }
    solution.values[v] = value;
  }
  solution.solved = meets(program, solution.values);
  if (!solution.solved) solution.reason = "the optimizer's answer does not meet the constraints";
  return solution;
}

}  // namespace

IntegerSolution minimize(const IntegerProgram& program, double seconds) {
  const auto milliseconds = static_cast<unsigned>(std::max(1.0, seconds * 1000 / 2));
  IntegerSolution solution;
  try {
    solution = solve(program, true, milliseconds);
    if (!solution.solved && solution.reason != "unsatisfiable" && !program.apart.empty()) solution = solve(program, false, milliseconds);
  } catch (const z3::exception& error) {
    solution.solved = false;
    solution.reason = error.msg();
  }
  return solution;
}

}  // namespace shardproof
