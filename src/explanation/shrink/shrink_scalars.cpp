// SPDX-License-Identifier: Apache-2.0
#include "shrink/shrink_scalars.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "ops/attributes.h"
#include "ops/registry.h"
#include "shardproof/error.h"

namespace shardproof {

namespace {

// n of a factor n, -n, 1/n or -1/n; none for others.
std::optional<std::int64_t> wholeNumber(const Rational& r) {
  if (r.isZero()) return std::nullopt;
  Rational n = r.sign() < 0 ? -r : r;
  if (!n.isInteger()) n = n.inverse();
  if (!n.fitsInt64() || n.toInt64() < 4) return std::nullopt;
  return n.toInt64();
}

struct Uses {
  bool model = false, plan = false;
  bool asDecimal = false;  // 1/n must have a finite decimal: no operator divides instead
};

void collect(const Problem& problem, const Graph& graph, bool inModel,
             std::map<std::int64_t, Uses>& uses) {
  const auto use = [&](const Rational& r, bool mayDivide) {
    const auto n = wholeNumber(r);
    if (!n) return;
    Uses& u = uses[*n];
    (inModel ? u.model : u.plan) = true;
    if (!mayDivide && !r.isInteger()) u.asDecimal = true;
  };
  for (const Node& node : graph.nodes) {
    if (node.communication >= 0) continue;
    const std::string& op = ops::Registry::instance().at(node.op).name;
    const char* key = factorAttribute(op);
    if (key == nullptr) continue;
    const Attributes& attributes = problem.attributes.at(node.attributes);
    if (ops::has(attributes, key))
      use(ops::number(attributes, key), std::string_view(key) == "scalar");
  }
  for (const Tensor& t : graph.tensors) {
    if (t.constant < 0 || t.element != ElementKind::kReal) continue;
    const ConstantValue& value = *graph.constants[t.constant];
    if (value.fill) use(value.elements.front(), false);
  }
}

using Lines = std::vector<std::int32_t>;  // sorted; those of size 1 left out

// The lines of neighbouring dimensions whose sizes multiply to a wanted number.
class Products {
 public:
  Products(const PlanLines& lines, const std::map<std::int64_t, Uses>& wanted)
      : lines_(lines), wanted_(wanted) {}
  void add(const std::vector<PlanLines::Dim>& dims) {
    std::vector<std::int32_t> groups;
    for (const PlanLines::Dim d : dims) groups.push_back(lines_.group(d));
    if (!seen_.insert(groups).second) return;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      std::int64_t product = 1;
      Lines own;
      for (std::size_t j = i; j < dims.size(); ++j) {
        if (__builtin_mul_overflow(product, lines_.fullSize(dims[j]), &product)) break;
        for (const std::int32_t l : lines_.linesOf(dims[j])) {
          if (lines_.fullSizeOfLine(l) > 1) own.push_back(l);
        }
        if (!wanted_.contains(product)) continue;
        Lines sorted = own;
        std::sort(sorted.begin(), sorted.end());
        (j == i ? single_ : several_)[product].insert(std::move(sorted));
      }
    }
  }
  // Single dimensions come before neighbours.
  const std::set<Lines>* of(std::int64_t n) const {
    if (const auto it = single_.find(n); it != single_.end()) return &it->second;
    return neighbours(n);
  }
  // Also where a single dimension is as large.
  const std::set<Lines>* neighbours(std::int64_t n) const {
    const auto it = several_.find(n);
    return it == several_.end() ? nullptr : &it->second;
  }

 private:
  const PlanLines& lines_;
  const std::map<std::int64_t, Uses>& wanted_;
  std::set<std::vector<std::int32_t>> seen_;
  std::map<std::int64_t, std::set<Lines>> single_, several_;
};

// The new values of all products of axes and microbatches whose full value is n.
std::set<std::int64_t> productsOfAxes(const Plan& plan, const KeptRanks& kept,
                                      const std::set<std::int32_t>* among, std::int64_t n) {
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // full size, new size
  for (std::size_t a = 0; a < plan.mesh.size(); ++a) {
    if (among != nullptr && !among->contains(static_cast<std::int32_t>(a))) continue;
    if (plan.mesh[a].size > 1) axes.emplace_back(plan.mesh[a].size, kept.ofAxis[a].size());
  }
  if (plan.microbatches > 1) axes.emplace_back(plan.microbatches, kept.microbatches.size());
  std::set<std::pair<std::int64_t, std::int64_t>> products{{1, 1}};
  for (const auto& [full, now] : axes) {
    const auto before = products;
    for (const auto& [a, b] : before) {
      if (a * full <= n) products.emplace(a * full, b * now);
    }
  }
  std::set<std::int64_t> found;
  for (const auto& [a, b] : products) {
    if (a == n) found.insert(b);
  }
  return found;
}

}  // namespace

const char* factorAttribute(const std::string& op) {
  static const std::map<std::string, const char*, std::less<>> kOperators{
      {"mul", "scalar"},          {"div", "scalar"},
      {"mul_backward", "scalar"}, {"div_backward", "scalar"},
      {"add", "alpha"},           {"sub", "alpha"},
      {"add_backward", "alpha"},  {"sub_backward", "alpha"},
      {"attention", "scale"},     {"attention_backward", "scale"}};
  const auto it = kOperators.find(op);
  return it == kOperators.end() ? nullptr : it->second;
}

SizeFactors::SizeFactors(const Problem& problem, const KeptRanks& kept,
                         const PlanRelations& relations, IntegerProgram& program) {
  std::map<std::int64_t, Uses> uses;
  collect(problem, problem.model.graph, true, uses);
  for (const Program& p : problem.plan.programs) collect(problem, p.graph, false, uses);
  if (uses.empty()) return;
  const PlanLines& lines = relations.lines;
  Products products(lines, uses);
  for (const auto& dims : relations.model.ofTensor) products.add(dims);
  for (const GraphDims& p : relations.programs) {
    for (const auto& dims : p.ofTensor) products.add(dims);
  }
  // Lines of what a step is given and of no parameter, but of indices (tokens, labels) all: there
  // may be a table of positions.
  std::set<std::int32_t> data, parameters;
  const auto gather = [&](TensorKind kind, std::set<std::int32_t>& to) {
    for (const TensorId t : firstIds<TensorId>(problem.model.graph.tensors.size())) {
      if (problem.model.graph.tensors[t].kind != kind) continue;
      for (const PlanLines::Dim d : relations.model.ofTensor[t])
        to.insert(lines.linesOf(d).begin(), lines.linesOf(d).end());
    }
  };
  gather(TensorKind::kInput, data);
  gather(TensorKind::kParameter, parameters);
  for (const ProgramId p : firstIds<ProgramId>(relations.programs.size())) {
    const auto& dims = relations.programs[p].ofTensor;
    for (std::size_t t = 0; t < dims.size(); ++t) {
      const TensorKind kind = problem.plan.programs[p].graph.tensors[t].kind;
      if (kind != TensorKind::kInput && kind != TensorKind::kParameter) continue;
      for (const PlanLines::Dim d : dims[t])
        (kind == TensorKind::kInput ? data : parameters)
            .insert(lines.linesOf(d).begin(), lines.linesOf(d).end());
    }
  }
  std::erase_if(data, [&](std::int32_t l) { return parameters.contains(l); });
  const auto addIndices = [&](const Graph& graph, const GraphDims& dims) {
    for (std::size_t t = 0; t < dims.ofTensor.size(); ++t) {
      if (graph.tensors[t].kind != TensorKind::kInput ||
          graph.tensors[t].element != ElementKind::kInteger)
        continue;
      for (const PlanLines::Dim d : dims.ofTensor[t])
        data.insert(lines.linesOf(d).begin(), lines.linesOf(d).end());
    }
  };
  addIndices(problem.model.graph, relations.model);
  for (const ProgramId p : firstIds<ProgramId>(relations.programs.size()))
    addIndices(problem.plan.programs[p].graph, relations.programs[p]);
  std::set<std::int32_t> dataAxes;
  for (const LineageEntry& entry : problem.plan.lineage) {
    if (entry.role != Role::kInput ||
        problem.model.graph.tensors[entry.tensor].kind != TensorKind::kInput)
      continue;
    for (const Shard& shard : entry.shards) {
      for (const auto& step : shard.step) dataAxes.insert(step.first);
    }
  }
  const auto keepLine = [&](std::int32_t line) {
    LinearSum sum = lines.total(line);
    sum.constant -= lines.fullSizeOfLine(line);
    program.zero.push_back(std::move(sum));
  };
  for (const auto& [n, use] : uses) {
    const bool oneSided = use.model != use.plan;
    SizeProduct product;
    const std::set<Lines>* candidates = products.of(n);
    // What differs between the sides is most often how many samples or tokens there are, also where
    // a layer happens to be as wide.
    std::set<Lines> likely;
    for (const std::set<Lines>* all : {candidates, oneSided ? products.neighbours(n) : nullptr}) {
      if (all == nullptr || !likely.empty()) continue;
      std::copy_if(all->begin(), all->end(), std::inserter(likely, likely.end()),
                   [&](const Lines& own) {
                     return std::all_of(own.begin(), own.end(),
                                        [&](std::int32_t l) { return data.contains(l); });
                   });
    }
    if (!likely.empty()) candidates = &likely;
    if (oneSided && use.plan) {
      // Most likely those that samples are divided over; what samples or tokens there are n of is
      // likelier than other axes.
      std::set<std::int64_t> values = productsOfAxes(problem.plan, kept, &dataAxes, n);
      if (values.size() != 1 && (likely.empty() || !values.empty()))
        values = productsOfAxes(problem.plan, kept, nullptr, n);
      if (values.size() > 1)
        throw Unsupported("the factor " + std::to_string(n) +
                          " of the plan may stand for different axes or microbatches, of which "
                          "ranks would be left out");
      if (values.size() == 1) {
        // As many samples or tokens as ranks: they come to be as many again, so that it does not
        // matter which are meant.
        for (const Lines& own : likely) {
          if (own.size() != 1 && *values.begin() != n)
            throw Unsupported("the factor " + std::to_string(n) +
                              " of the plan may stand for ranks or for samples");
          if (own.size() != 1) {
            std::for_each(own.begin(), own.end(), keepLine);
            continue;
          }
          LinearSum sum = lines.total(own[0]);
          sum.constant -= *values.begin();
          program.zero.push_back(std::move(sum));
        }
        products_[n] = {*values.begin(), {}};
        continue;
      }
    }
    if (candidates == nullptr) {
      if (oneSided) unexplained_.push_back(std::to_string(n));
      continue;
    }
    product.lines = *candidates->begin();
    if (oneSided && candidates->size() > 1) {
      for (const Lines& other : *candidates) {
        if (other == product.lines) continue;
        if (other.size() == 1 && product.lines.size() == 1) {
          LinearSum difference = lines.total(other[0]);
          program.zero.push_back(difference.add(lines.total(product.lines[0]), -1));
          continue;
        }
        for (const Lines& all : *candidates) std::for_each(all.begin(), all.end(), keepLine);
        break;
      }
    }
    if (use.asDecimal) {
      // Sizes of which 1/n' has a decimal: whole powers of 2 and 5, line by line.
      for (const std::int32_t line : product.lines) {
        std::vector<std::int64_t> values;
        for (std::int64_t twos = 1; twos <= lines.fullSizeOfLine(line); twos *= 2) {
          for (std::int64_t v = twos; v <= lines.fullSizeOfLine(line); v *= 5) values.push_back(v);
        }
        program.among.emplace_back(lines.total(line), std::move(values));
      }
    }
    products_[n] = std::move(product);
  }
}

Rational SizeFactors::mapped(const Rational& factor, const PlanLines& lines) const {
  const auto n = wholeNumber(factor);
  const auto it = n ? products_.find(*n) : products_.end();
  if (it == products_.end()) return factor;
  std::int64_t value = it->second.factor;
  for (const std::int32_t line : it->second.lines) value *= lines.newSizeOfLine(line);
  return factor.isInteger() ? factor / Rational(*n) * Rational(value)
                            : factor * Rational(*n) / Rational(value);
}

}  // namespace shardproof
