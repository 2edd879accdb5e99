// SPDX-License-Identifier: Apache-2.0
// Variables that no constraint names take their least value without Z3: objectives only grow with
// them. What Z3 answers is checked against the program before it is handed out, so a mistake of the
// solver cannot become a wrong size.
#include "shrink/optimizer.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include <z3++.h>

#include "util/stopwatch.h"
#include "util/union_find.h"

namespace shardproof {

LinearSum& LinearSum::add(std::int32_t variable, std::int64_t coefficient) {
  const auto it = std::lower_bound(terms.begin(), terms.end(), variable,
                                   [](const auto& t, std::int32_t v) { return t.first < v; });
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
  for (const auto& [variable, coefficient] : terms)
    sum += coefficient * values[static_cast<std::size_t>(variable)];
  return sum;
}

namespace {

bool meets(const IntegerProgram& program, const std::vector<std::int64_t>& values) {
  for (std::size_t v = 0; v < values.size(); ++v) {
    if (values[v] < program.variables[v].first || values[v] > program.variables[v].second)
      return false;
  }
  return std::all_of(program.zero.begin(), program.zero.end(),
                     [&](const LinearSum& s) { return s.value(values) == 0; }) &&
         std::all_of(program.notNegative.begin(), program.notNegative.end(),
                     [&](const LinearSum& s) { return s.value(values) >= 0; }) &&
         std::all_of(program.among.begin(), program.among.end(), [&](const auto& a) {
           return std::find(a.second.begin(), a.second.end(), a.first.value(values)) !=
                  a.second.end();
         });
}

constexpr int kMostRaised = 8;  // times that one sum is made larger

bool boundsMeet(const IntegerProgram& program) {
  return std::all_of(program.variables.begin(), program.variables.end(),
                     [](const auto& v) { return v.first <= v.second; });
}

IntegerSolution solveWithZ3(const IntegerProgram& program, unsigned milliseconds) {
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
    z3::expr_vector terms(c);
    terms.push_back(number(sum.constant));
    for (const auto& [v, coefficient] : sum.terms) {
      auto& variable = variables[static_cast<std::size_t>(v)];
      if (!variable) {
        variable = c.int_const(("n" + std::to_string(v)).c_str());
        const auto& [low, high] = program.variables[static_cast<std::size_t>(v)];
        optimizer.add(*variable >= number(low));
        optimizer.add(*variable <= number(high));
      }
      terms.push_back(coefficient == 1 ? *variable : number(coefficient) * *variable);
    }
    // One sum of all: nested ones cost their length squared.
    return z3::sum(terms);
  };
  for (const LinearSum& s : program.zero) optimizer.add(expression(s) == number(0));
  for (const LinearSum& s : program.notNegative) optimizer.add(expression(s) >= number(0));
  for (const auto& [sum, values] : program.among) {
    const z3::expr e = expression(sum);
    z3::expr any = c.bool_val(false);
    for (const std::int64_t v : values) any = any || e == number(v);
    optimizer.add(any);
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

// Constraints that share no variable are programs of their own, and layers that are alike make the
// same one many times: each is solved once.
class Solver {
 public:
  // The answer, of which every part is the least one.
  IntegerSolution solve(const IntegerProgram& program,
                        const std::function<unsigned()>& millisecondsLeft) {
    IntegerSolution solution;
    if (!boundsMeet(program)) {
      solution.reason = "unsatisfiable";
      return solution;
    }
    for (const auto& [low, high] : program.variables) solution.values.push_back(low);
    std::vector<std::int64_t> weight(program.variables.size(), 0);
    for (const auto& [v, coefficient] : program.objective.terms)
      weight[static_cast<std::size_t>(v)] = coefficient;
    for (Component& c : componentsOf(program)) {
      for (const std::int32_t v : c.variables) {
        c.program.objective.terms.emplace_back(
            static_cast<std::int32_t>(c.program.variables.size()),
            weight[static_cast<std::size_t>(v)]);
        c.program.variables.push_back(program.variables[static_cast<std::size_t>(v)]);
      }
      std::erase_if(c.program.objective.terms, [](const auto& t) { return t.second == 0; });
      const auto [it, inserted] =
          solved_.try_emplace(Key{c.program.variables, c.program.zero, c.program.notNegative,
                                  c.program.among, c.program.objective});
      if (inserted) {
        const unsigned milliseconds = millisecondsLeft();
        if (milliseconds > 0) it->second = solveWithZ3(c.program, milliseconds);
        else it->second.reason = "out of time";
      }
      if (!it->second.solved) {
        solution.reason = it->second.reason;
        if (solution.reason != "unsatisfiable") solved_.erase(it);  // with more time, perhaps
        return solution;
      }
      for (std::size_t i = 0; i < c.variables.size(); ++i)
        solution.values[static_cast<std::size_t>(c.variables[i])] = it->second.values[i];
    }
    solution.solved = true;
    return solution;
  }

 private:
  using Key = std::tuple<std::vector<std::pair<std::int64_t, std::int64_t>>, std::vector<LinearSum>,
                         std::vector<LinearSum>,
                         std::vector<std::pair<LinearSum, std::vector<std::int64_t>>>, LinearSum>;
  struct Component {
    std::vector<std::int32_t> variables;  // ascending: of the whole program
    IntegerProgram program;
  };

  static std::vector<Component> componentsOf(const IntegerProgram& program) {
    UnionFind<std::int32_t> joined(program.variables.size());
    std::vector<char> named(program.variables.size(), 0);
    const auto forEachSum = [&](auto&& f) {
      for (const LinearSum& s : program.zero) f(s, 0, nullptr);
      for (const LinearSum& s : program.notNegative) f(s, 1, nullptr);
      for (const auto& [s, values] : program.among) f(s, 2, &values);
    };
    forEachSum([&](const LinearSum& s, int, const std::vector<std::int64_t>*) {
      for (const auto& t : s.terms) {
        named[static_cast<std::size_t>(t.first)] = 1;
        joined.unite(t.first, s.terms.front().first);
      }
    });
    std::vector<Component> components;
    std::vector<std::int32_t> componentOf(program.variables.size(), -1),
        place(program.variables.size(), -1);
    for (std::size_t v = 0; v < named.size(); ++v) {
      if (!named[v]) continue;
      std::int32_t& c =
          componentOf[static_cast<std::size_t>(joined.find(static_cast<std::int32_t>(v)))];
      if (c < 0) {
        c = static_cast<std::int32_t>(components.size());
        components.emplace_back();
      }
      place[v] =
          static_cast<std::int32_t>(components[static_cast<std::size_t>(c)].variables.size());
      components[static_cast<std::size_t>(c)].variables.push_back(static_cast<std::int32_t>(v));
    }
    forEachSum([&](const LinearSum& s, int kind, const std::vector<std::int64_t>* values) {
      if (s.terms.empty() && components.empty()) components.emplace_back();
      const std::int32_t c =
          s.terms.empty()
              ? 0
              : componentOf[static_cast<std::size_t>(joined.find(s.terms.front().first))];
      LinearSum own;
      own.constant = s.constant;
      for (const auto& [v, coefficient] : s.terms)
        own.terms.emplace_back(place[static_cast<std::size_t>(v)],
                               coefficient);  // places ascend with variables
      IntegerProgram& to = components[static_cast<std::size_t>(c)].program;
      if (kind == 0) to.zero.push_back(std::move(own));
      else if (kind == 1) to.notNegative.push_back(std::move(own));
      else to.among.emplace_back(std::move(own), *values);
    });
    return components;
  }

  std::map<Key, IntegerSolution> solved_;
};

// Raises `sum` above `value`: where it is one variable by its bound, so that Z3 need not know of
// it.
void raise(IntegerProgram& program, const LinearSum& sum, std::int64_t value) {
  if (sum.terms.size() == 1 && sum.terms[0].second > 0) {
    const std::int64_t rest = value - sum.constant, coefficient = sum.terms[0].second;
    std::int64_t& low = program.variables[static_cast<std::size_t>(sum.terms[0].first)].first;
    low = std::max(
        low, (rest >= 0 ? rest / coefficient : -((-rest + coefficient - 1) / coefficient)) + 1);
    return;
  }
  LinearSum more = sum;
  more.constant -= value + 1;
  program.notNegative.push_back(std::move(more));
}

// Variables that one equation alone names and that are in it as others are in equal ones (the
// shards of a hundred weights of one shape) are one variable.
std::vector<std::int32_t> mergeAlike(IntegerProgram& program) {
  std::vector<std::int32_t> alias(program.variables.size());
  std::iota(alias.begin(), alias.end(), 0);
  std::vector<int> named(program.variables.size(), 0);
  const auto count = [&](const LinearSum& sum) {
    for (const auto& t : sum.terms) ++named[static_cast<std::size_t>(t.first)];
  };
  for (const auto* list : {&program.zero, &program.notNegative})
    std::for_each(list->begin(), list->end(), count);
  for (const auto& a : program.among) count(a.first);
  std::map<std::tuple<LinearSum, std::int64_t, std::pair<std::int64_t, std::int64_t>>, std::int32_t>
      first;
  std::erase_if(program.zero, [&](const LinearSum& sum) {
    const auto own = std::find_if(sum.terms.begin(), sum.terms.end(), [&](const auto& t) {
      return named[static_cast<std::size_t>(t.first)] == 1;
    });
    if (own == sum.terms.end() || sum.terms.size() < 2) return false;
    LinearSum rest = sum;
    rest.add(own->first, -own->second);
    const auto [it, inserted] = first.try_emplace(
        {std::move(rest), own->second, program.variables[static_cast<std::size_t>(own->first)]},
        own->first);
    alias[static_cast<std::size_t>(own->first)] = it->second;
    return !inserted;
  });
  const auto rename = [&](LinearSum& sum) {
    LinearSum renamed;
    renamed.constant = sum.constant;
    for (const auto& [v, coefficient] : sum.terms)
      renamed.add(alias[static_cast<std::size_t>(v)], coefficient);
    sum = std::move(renamed);
  };
  rename(program.objective);
  for (auto& d : program.distinct) rename(d.first);
  return alias;
}

}  // namespace

IntegerSolution minimize(const IntegerProgram& original, double seconds) {
  IntegerProgram wanted = original;
  const std::vector<std::int32_t> alias = mergeAlike(wanted);
  const auto start = std::chrono::steady_clock::now();
  const std::function<unsigned()> left = [&] {
    const double spent = secondsSince(start);
    return static_cast<unsigned>(std::max(0.0, (seconds - spent) * 1000));
  };
  IntegerSolution best;
  Solver solver;
  try {
    IntegerProgram program = wanted;
    best = solver.solve(program, left);
    std::vector<char> constrained(wanted.variables.size(), 0);
    const auto mark = [&](const LinearSum& sum) {
      for (const auto& [v, coefficient] : sum.terms) constrained[static_cast<std::size_t>(v)] = 1;
    };
    for (const auto* list : {&wanted.zero, &wanted.notNegative})
      std::for_each(list->begin(), list->end(), mark);
    for (const auto& a : wanted.among) mark(a.first);
    // Wishes one after another: a sum that equals an earlier one becomes larger, where that can be.
    for (const auto& [own, others] : wanted.distinct) {
      const auto taken = [&, &sum = own, &with = others](const std::vector<std::int64_t>& values) {
        return std::any_of(with.begin(), with.end(), [&](std::size_t other) {
          return wanted.distinct[other].first.value(values) == sum.value(values);
        });
      };
      IntegerProgram next = program;
      IntegerSolution solution = best;
      for (int raised = 0;
           solution.solved && raised < kMostRaised && left() > 0 && taken(solution.values);
           ++raised) {
        raise(next, own, own.value(solution.values));
        const auto only = static_cast<std::size_t>(own.terms.empty() ? 0 : own.terms[0].first);
        if (own.terms.size() == 1 && !constrained[only] && boundsMeet(next))
          solution.values[only] = next.variables[only].first;
        else solution = solver.solve(next, left);
      }
      if (!solution.solved || taken(solution.values)) continue;  // larger for nothing
      if (program.notNegative.size() != next.notNegative.size()) mark(own);
      program = std::move(next);
      best = std::move(solution);
    }
  } catch (const z3::exception& error) {
    if (!best.solved) best.reason = error.msg();
  }
  for (std::size_t v = 0; v < best.values.size(); ++v)
    best.values[v] = best.values[static_cast<std::size_t>(alias[v])];
  if (best.solved && !meets(original, best.values)) {
    best.solved = false;
    best.reason = "the optimizer's answer does not meet the constraints";
  }
  return best;
}

}  // namespace shardproof
