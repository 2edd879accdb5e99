// SPDX-License-Identifier: Apache-2.0
// Steps: choose which ranks stay (kept_ranks), collect what sizes must meet on these
// (plan_relations), let the optimizer choose the sizes, write the problem with them and read it
// again, so that every rule of the reader holds. Where some ranks cannot be left out, axes are
// tried one by one, and all of their ranks stay at worst.
#include "shrink/shrink.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "ir/attribute_steps.h"
#include "ir/clone.h"
#include "ir/local_parts.h"
#include "ops/registry.h"
#include "plan/symmetry_classes.h"
#include "reader/reader.h"
#include "shardproof/error.h"
#include "shrink/kept_ranks.h"
#include "shrink/optimizer.h"
#include "shrink/plan_relations.h"
#include "shrink/shrink_scalars.h"
#include "shrink/shrink_sizes.h"
#include "shrink/shrunk_problem.h"
#include "util/index.h"
#include "util/shapes.h"
#include "writer/write_problem.h"

namespace shardproof {

namespace {

// Sizes need not differ where that would be dear: with more elements than so many, and a smaller
// share of them without it.
constexpr double kManyElements = 2e7, kWorthwhile = 0.7;
constexpr std::int32_t kAllRanks = std::numeric_limits<std::int32_t>::max();  // of each class
constexpr std::int32_t kWhole = std::numeric_limits<std::int32_t>::max();

double elementsOf(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), 1.0,
                         [](double a, std::int64_t b) { return a * static_cast<double>(b); });
}

double elementsOf(const Problem& problem) {
  double total = 0;
  for (const Tensor& t : problem.model.graph.tensors) total += elementsOf(t.shape);
  for (const Program& program : problem.plan.programs) {
    double ranks = 1;
    for (std::size_t a = 0; a < problem.plan.mesh.size(); ++a) {
      if (std::none_of(program.at.begin(), program.at.end(),
                       [a](const auto& c) { return at(c.first) == a; }))
        ranks *= problem.plan.mesh[a].size;
    }
    for (const Tensor& t : program.graph.tensors)
      total += ranks * elementsOf(t.shape) * (t.perMicrobatch ? problem.plan.microbatches : 1);
  }
  return total;
}

// One choice of the ranks that stay, with the sizes that were found for it.
struct Attempt {
  KeptRanks kept;
  PlanRelations relations;
  std::optional<SizeFactors> factors;
};

Attempt attempt(const Problem& problem, const std::vector<std::int32_t>& perClass,
                const ShrinkOptions& options) {
  Attempt result{keepRanks(problem, perClass, !options.windowsAlike), {}, {}};
  result.relations = relatePlan(problem, result.kept);
  PlanLines& lines = result.relations.lines;
  IntegerProgram program;
  std::vector<char> free;
  // An expert is whole matrices.
  std::vector<char> experts(lines.classes().size(), 0);
  for (const Gate& gate : result.relations.gates)
    for (const std::int32_t line : lines.linesOf(gate.experts))
      for (const auto& [c, n] : lines.total(line).terms) experts[at(c)] = 1;
  const auto positions = [&](const PlanLines::Class& c) {
    if (c.telling == PlanLines::Telling::kNo) return options.positions;
    const bool rows = c.telling == PlanLines::Telling::kRows && !experts[free.size()];
    return std::max(options.positions,
                    rows ? options.lookedUpPositions : options.distinctPositions);
  };
  for (const PlanLines::Class& c : lines.classes()) {
    const std::int64_t least = c.dropped                         ? 0
                               : c.fixed || c.size <= kSmallSize ? c.size
                                                                 : std::min(c.size, positions(c));
    program.variables.emplace_back(
        least, c.dropped ? 0
               : c.fixed ? c.size
                         : std::max(least, c.size <= kSmallSize ? least : c.size));
    free.push_back(program.variables.back().first < program.variables.back().second);
    if (!c.dropped)
      program.objective.terms.emplace_back(static_cast<std::int32_t>(free.size()) - 1,
                                           std::max<std::int64_t>(1, c.uses));
  }
  addSizes(result.relations, result.kept, program);
  result.factors.emplace(problem, result.kept, result.relations, program);
  if (options.distinct) addDistinct(result.relations, free, program);
  const IntegerSolution solution = minimize(program, options.seconds);
  if (!solution.solved) throw Unsupported("no smaller sizes were found: " + solution.reason);
  std::vector<std::int64_t> sizes(
      solution.values.begin(), solution.values.begin() + static_cast<std::ptrdiff_t>(free.size()));
  shareSizes(result.relations, sizes);
  lines.assign(sizes);
  return result;
}

// A mesh axis, or last the microbatches, as something that smaller plans have less of.
struct Shrinkable {
  std::string what;
  std::int32_t size;
  std::vector<std::size_t> classes;  // how many are alike
};

std::vector<Shrinkable> shrinkables(const Problem& problem, const ShrinkOptions& options) {
  const Plan& plan = problem.plan;
  const KeptRanks all =
      keepRanks(problem, std::vector<std::int32_t>(plan.mesh.size() + 1, kWhole), true);
  const SymmetryClasses symmetry(plan, MeshView(plan.mesh), all.programOfRank,
                                 !options.windowsAlike, true);
  std::vector<Shrinkable> result;
  for (std::size_t a = 0; a < plan.mesh.size(); ++a) {
    Shrinkable axis{"axis " + plan.mesh[a].name + " keeps its ranks", plan.mesh[a].size, {}};
    for (const auto& c : symmetry.classes(static_cast<std::int32_t>(a)))
      axis.classes.push_back(c.size());
    result.push_back(std::move(axis));
  }
  const auto microbatches = static_cast<std::size_t>(plan.microbatches);
  result.push_back({"all microbatches stay", plan.microbatches,
                    microbatchesAreAlike(problem) ? std::vector{microbatches}
                                                  : std::vector<std::size_t>(microbatches, 1)});
  return result;
}

// How many of each class stay: few, where there are more than three, and so that axes of different
// sizes still have different ones. Microbatches come last.
std::vector<std::int32_t> fewRanks(const std::vector<Shrinkable>& axes,
                                   const ShrinkOptions& options) {
  std::vector<std::int32_t> result(axes.size(), kWhole);
  std::set<std::pair<std::int64_t, std::int64_t>> sizes;  // new, full
  std::vector<std::size_t> shrinkable;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (std::any_of(axes[a].classes.begin(), axes[a].classes.end(),
                    [](std::size_t c) { return c > at(kSmallSize); }))
      shrinkable.push_back(a);
    else sizes.emplace(axes[a].size, axes[a].size);
  }
  std::stable_sort(shrinkable.begin(), shrinkable.end(), [&](std::size_t a, std::size_t b) {
    const std::size_t last = axes.size() - 1;
    return std::tuple(a == last, -axes[a].size) < std::tuple(b == last, -axes[b].size);
  });
  for (const std::size_t a : shrinkable) {
    // Twice as many rather than one more, where that is possible: sizes are mostly powers of two.
    const std::int32_t few = std::max(2, options.ranks);
    for (std::int32_t i = 0;; ++i) {
      const std::int32_t k = i == 0 ? few : i == 1 ? 2 * few : few + i - 1;
      std::int64_t now = 0;
      for (const std::size_t c : axes[a].classes)
        now += std::min<std::int64_t>(static_cast<std::int64_t>(c), k);
      const bool collides = std::any_of(sizes.begin(), sizes.end(), [&](const auto& s) {
        return s.first == now && s.second != axes[a].size;
      });
      if ((collides || now >= axes[a].size) && k <= axes[a].size) continue;
      if (now < axes[a].size) result[a] = k;
      sizes.emplace(now, axes[a].size);
      break;
    }
  }
  return result;
}

Attempt smallest(const Problem& problem, const ShrinkOptions& options,
                 std::vector<std::string>& notes) {
  const std::vector<Shrinkable> all = shrinkables(problem, options);
  const std::vector<std::int32_t> few = fewRanks(all, options);
  std::vector<std::int32_t> chosen(few.size(), kWhole);
  std::vector<std::size_t> axes;
  for (std::size_t a = 0; a < few.size(); ++a) {
    if (few[a] != kWhole) axes.push_back(a);
  }
  if (axes.empty()) return attempt(problem, chosen, options);
  try {
    return attempt(problem, few, options);
  } catch (const Unsupported& error) {
    if (axes.size() == 1) {
      notes.push_back(all[axes[0]].what + ": " + error.what());
      return attempt(problem, chosen, options);
    }
  }
  // One after another, the largest first.
  std::stable_sort(axes.begin(), axes.end(),
                   [&](std::size_t a, std::size_t b) { return all[a].size > all[b].size; });
  std::optional<Attempt> best;
  for (const std::size_t a : axes) {
    std::vector<std::int32_t> next = chosen;
    next[a] = few[a];
    try {
      best = attempt(problem, next, options);
      chosen = std::move(next);
    } catch (const Unsupported& error) {
      notes.push_back(all[a].what + ": " + error.what());
    }
  }
  return best ? std::move(*best) : attempt(problem, chosen, options);
}

// An operator that is written for the number of ranks: a `cat` of one piece for each.
class NotFitting : public Unsupported {
 public:
  using Unsupported::Unsupported;
};

// What the operator made of its operands before, it makes of them now: a mistake of the rewriting
// must not look like one of the plan.
void checkGraph(const Problem& problem, const Graph& graph, const std::vector<char>& fits,
                const std::string& where) {
  for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
    const Node& node = graph.nodes[n];
    if (node.communication >= 0 || !fits[n]) continue;
    const ops::OperatorInfo& op = ops::Registry::instance().at(node.op);
    std::vector<ops::TensorInfo> infos(node.inCount);
    std::vector<const ops::TensorInfo*> operands(node.inCount, nullptr);
    for (std::size_t i = 0; i < node.inCount; ++i) {
      const Operand& o = graph.in(node)[i];
      if (!o.present()) continue;
      infos[i] = {graph.tensors[o.tensor].shape, graph.tensors[o.tensor].element};
      operands[i] = &infos[i];
    }
    const std::string place = where + "/nodes/" + std::to_string(n) + " (" + op.name + ")";
    try {
      const auto results =
          op.infer({problem.attributes.at(node.attributes), operands, node.outCount});
      for (std::size_t i = 0; i < node.outCount; ++i) {
        const TensorId t = graph.out(node)[i];
        if (t >= 0 && !fitsDeclared(results[i].shape, graph.tensors[t].shape, op.scalarMayBeOne))
          throw NotFitting(place + " does not fit the smaller sizes");
      }
    } catch (const ShapeError& error) {
      throw NotFitting(place + " does not fit the smaller sizes: " + error.what());
    }
  }
}

// The nodes of a program that stay.
std::vector<NodeId> keptNodes(const Problem& problem, const Attempt& best, ProgramId program) {
  const Graph& graph = problem.plan.programs[program].graph;
  std::vector<NodeId> nodes;
  for (const NodeId n : firstIds<NodeId>(graph.nodes.size()))
    if (!goes(problem, best.kept, graph, graph.nodes[n])) nodes.push_back(n);
  return nodes;
}

void describe(const Problem& problem, const Attempt& a, Shrunk& shrunk) {
  const Plan& plan = problem.plan;
  for (std::size_t i = 0; i < plan.mesh.size(); ++i)
    shrunk.changes.push_back({"axis " + plan.mesh[i].name, plan.mesh[i].size,
                              static_cast<std::int64_t>(a.kept.ofAxis[i].size())});
  if (plan.microbatches > 1)
    shrunk.changes.push_back(
        {"microbatches", plan.microbatches, static_cast<std::int64_t>(a.kept.microbatches.size())});
  std::set<std::vector<std::int32_t>> seen;
  const auto& tensors = problem.model.graph.tensors;
  for (const bool given : {true, false}) {  // inputs and parameters are what people know
    for (const TensorId t : firstIds<TensorId>(tensors.size())) {
      if ((tensors[t].kind != TensorKind::kProduced) != given) continue;
      for (std::size_t d = 0; d < tensors[t].shape.size(); ++d) {
        const PlanLines::Dim dim = a.relations.model.ofTensor[t][d];
        if (tensors[t].shape[d] == 1 || !seen.insert(a.relations.lines.linesOf(dim)).second)
          continue;
        shrunk.changes.push_back(
            {"dimension " + std::to_string(d) + " of '" + problem.names.text(tensors[t].name) + "'",
             tensors[t].shape[d], a.relations.lines.newSize(dim)});
      }
    }
  }
}

Shrunk shrink(const Problem& problem, const ShrinkOptions& options) {
  Shrunk shrunk;
  const Attempt best = smallest(problem, options, shrunk.notes);
  const auto factor = [&](const Rational& r) {
    return best.factors->mapped(r, best.relations.lines);
  };
  std::unique_ptr<Problem> small = withNewSizes(problem, best.kept, best.relations, factor);
  ir::makePartsOwn(*small);  // boxes of parts are those of the operators, which are smaller now
  shrunk.modelText = modelText(*small);
  shrunk.planText = planText(*small, problem.plan.modelFile);
  try {
    shrunk.problem = readProblemText(shrunk.modelText, shrunk.planText);
  } catch (const InputError& error) {
    throw Unsupported(std::string("the smaller plan cannot be read: ") + error.what());
  }
  const Problem& result = *shrunk.problem;
  checkGraph(result, result.model.graph, best.relations.model.fits, "the model's ");
  std::size_t p = 0;
  for (const ProgramId full : firstIds<ProgramId>(problem.plan.programs.size())) {
    if (!best.kept.keeps(problem.plan.programs[full].at)) continue;
    std::vector<char> fits;
    shrunk.nodeOf.push_back(keptNodes(problem, best, full));
    for (const NodeId n : shrunk.nodeOf.back())
      fits.push_back(best.relations.programs[full].fits[n]);
    checkGraph(result, result.plan.programs[p].graph, fits, "/programs/" + std::to_string(p));
    shrunk.programOf.push_back(ProgramId(full));
    ++p;
  }
  shrunk.coordinatesOf = best.kept.ofAxis;
  shrunk.microbatchOf = best.kept.microbatches;
  for (const std::string& n : best.factors->unexplained())
    shrunk.notes.push_back("the factor " + n + " (or 1/" + n +
                           ") of one side alone is no product of sizes and stays");
  shrunk.factorsExplained = best.factors->unexplained().empty();
  // Entries of the file keep their order; those for dropout's masks are made anew.
  const std::size_t written = problem.plan.lineage.size() - problem.lineageAdded;
  const bool sameMasks = result.plan.lineage.size() == problem.plan.lineage.size();
  for (const EntryId e : firstIds<EntryId>(result.plan.lineage.size()))
    shrunk.entryOf.push_back(e.index() < written || sameMasks ? e : EntryId());
  describe(problem, best, shrunk);
  shrunk.fullPosition = [relations = std::make_shared<const PlanRelations>(best.relations)](
                            std::int32_t tensor, std::size_t d, std::int64_t position) {
    return relations->lines.fullPosition(relations->model.ofTensor[at(tensor)][d], position);
  };
  shrunk.fullElements = elementsOf(problem);
  shrunk.elements = elementsOf(result);
  if (options.distinct && shrunk.elements > kManyElements) {
    ShrinkOptions least = options;
    least.distinct = false;
    Shrunk other = shrink(problem, least);
    if (other.elements < kWorthwhile * shrunk.elements) return other;
  }
  if (options.maxElements > 0 && shrunk.elements > options.maxElements) {
    throw Unsupported("the least sizes that were found leave " +
                      std::to_string(static_cast<std::int64_t>(shrunk.elements)) +
                      " elements in all tensors, more than the limit of " +
                      std::to_string(static_cast<std::int64_t>(options.maxElements)));
  }
  return shrunk;
}

// As it is asked for; where some operator then does not fit, with all ranks.
Shrunk shrinkSome(const Problem& problem, const ShrinkOptions& options) {
  try {
    return shrink(problem, options);
  } catch (const NotFitting& error) {
    if (options.ranks == kAllRanks) throw;
    ShrinkOptions all = options;
    all.ranks = kAllRanks;
    Shrunk shrunk = shrink(problem, all);
    shrunk.notes.insert(shrunk.notes.begin(), std::string("all ranks stay: ") + error.what());
    return shrunk;
  }
}

}  // namespace

Shrunk shrinkProblem(const Problem& problem, const ShrinkOptions& options) {
  if (const auto fixed = ir::withFixedAttributes(problem)) {
    for (Program& program : fixed->plan.programs) program.inFile = {};  // it gets a file of its own
    return shrinkProblem(*fixed, options);
  }
  const auto& lineage = problem.plan.lineage;
  if (std::any_of(lineage.begin(), lineage.end(),
                  [](const LineageEntry& entry) { return entry.inferred; })) {
    // Of the plan as its file has it: what was found of it need not keep its meaning.
    const auto own = withoutInferred(problem);
    Shrunk shrunk = shrinkProblem(*own, options);
    const auto inferred = static_cast<std::int32_t>(lineage.size() - own->plan.lineage.size());
    const auto written = static_cast<std::int32_t>(own->plan.lineage.size() - problem.lineageAdded);
    for (EntryId& e : shrunk.entryOf)
      if (e >= written) e = EntryId(e + inferred);
    return shrunk;
  }
  return shrinkSome(problem, options);
}

}  // namespace shardproof
