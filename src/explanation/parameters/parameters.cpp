// SPDX-License-Identifier: Apache-2.0
#include "parameters/parameters.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "executor/interpret.h"
#include "executor/run.h"
#include "executor/setup.h"
#include "ir/attribute_steps.h"
#include "parameters/gradient_paths.h"
#include "shardproof/error.h"
#include "shrink/shrink.h"
#include "worker/pool.h"

namespace shardproof {

namespace {

using nlohmann::json;

constexpr std::uint64_t kSeed = 0x9a4a;
constexpr double kEqual = 1e-9;  // relative: what rounding explains in doubles
constexpr double kMostElements = 2e8;
constexpr double kFlopsPerSecond = 1e9;
constexpr double kSlackSeconds = 10;  // until a process that does not keep to its time is killed

// What one rank has of a gradient.
struct Held {
  Shape low, extent;       // in the model's
  std::int32_t slot = -1;  // as backward makes it
  TensorId made;           // the same
  const GradientPaths* paths = nullptr;
  Reductions reductions;
  bool summed = false;  // lineage of the output is a sum over ranks
};

class Explanation {
 public:
  // coordinates: by axis, those of the full plan that were kept; empty: all.
  Explanation(const Problem& problem, const executor::Limits& limits,
              std::vector<std::vector<std::int32_t>> coordinates = {})
      : problem_(problem),
        limits_(limits),
        coordinates_(std::move(coordinates)),
        setup_(problem, executor::Options()) {}

  ParameterTable run() {
    findGradients();
    execute();
    ParameterTable table;
    for (const auto& [parameter, ranks] : held_) table.rows.push_back(row(parameter, ranks));
    return table;
  }

 private:
  using Ranks = std::map<Rank, Held>;

  const Tensor& logical(EntryId e) const {
    return problem_.model.graph.tensors[problem_.plan.lineage[e].tensor];
  }
  const executor::Mesh& mesh() const { return setup_.programs.mesh(); }

  // The parameter of which an entry is about the gradient; "": of none.
  std::string parameterOf(EntryId e) const {
    if (problem_.plan.lineage[e].role != Role::kOutput) return "";
    const Tensor& tensor = logical(e);
    const std::string& name = problem_.names.text(tensor.name);
    if (tensor.gradientOf.valid()) return problem_.names.text(tensor.gradientOf);
    constexpr std::string_view kGradient = ".grad";
    if (!name.ends_with(kGradient)) return "";
    std::string of = name.substr(0, name.size() - kGradient.size());
    return parameters_.contains(of) ? of : "";
  }

  void findGradients() {
    for (const Tensor& t : problem_.model.graph.tensors)
      if (t.kind == TensorKind::kParameter) parameters_.insert(problem_.names.text(t.name));
    const auto entries = firstIds<EntryId>(problem_.plan.lineage.size());
    const auto& programs = setup_.programs;
    // Of each program: results that are no parameter's, and gradients as backward makes them.
    std::vector<std::set<TensorId>> results(problem_.plan.programs.size());
    std::map<std::string, std::vector<executor::Claim>> claims;
    for (const EntryId e : entries) {
      if (problem_.plan.lineage[e].role != Role::kOutput) continue;
      const std::string parameter = parameterOf(e);
      auto found = executor::claimsOf(programs, e);
      if (!parameter.empty()) {
        auto& all = claims[parameter];
        all.insert(all.end(), std::make_move_iterator(found.begin()),
                   std::make_move_iterator(found.end()));
      } else if (!isOfParameter(problem_.names.text(logical(e).name))) {
        for (const executor::Claim& claim : found)
          for (const auto& part : claim.parts)
            results[programs.programOf(part.rank)].insert(
                programs.layout(part.rank).tensorOfSlot[static_cast<std::size_t>(part.slot)]);
      }
    }
    for (const Program& program : problem_.plan.programs)
      paths_.push_back(std::make_unique<GradientPaths>(problem_.plan, program));
    for (const auto& [parameter, all] : claims)
      for (const executor::Claim& claim : all)
        for (const auto& part : claim.parts) add(parameter, claim, part);
    std::vector<std::vector<TensorId>> made(problem_.plan.programs.size());
    for (const auto& [parameter, ranks] : held_)
      for (const auto& [rank, held] : ranks) made[programs.programOf(rank)].push_back(held.made);
    for (std::size_t p = 0; p < paths_.size(); ++p)
      paths_[p]->findBackward(made[p], std::vector(results[p].begin(), results[p].end()));
  }

  bool isOfParameter(const std::string& name) const {
    for (std::size_t dot = name.rfind('.'); dot != std::string::npos && dot > 0;
         dot = name.rfind('.', dot - 1))
      if (parameters_.contains(name.substr(0, dot))) return true;
    return parameters_.contains(name);
  }

  void add(const std::string& parameter, const executor::Claim& claim,
           const executor::Claim::Part& part) {
    const auto& programs = setup_.programs;
    const ProgramId program = programs.programOf(part.rank);
    const auto& layout = programs.layout(part.rank);
    Held held;
    held.low = claim.low;
    held.extent = claim.extent;
    held.summed = claim.parts.size() > 1;
    held.paths = paths_[static_cast<std::size_t>(static_cast<std::int32_t>(program))].get();
    const TensorId gradient = layout.tensorOfSlot[static_cast<std::size_t>(part.slot)];
    GradientPaths::Path path = held.paths->pathTo(gradient);
    held.made = path.made;
    held.reductions = std::move(path.reductions);
    const Graph& graph = problem_.plan.programs[program].graph;
    const std::int32_t microbatch =
        graph.tensors[gradient].perMicrobatch ? std::max(claim.microbatch, 0) : 0;
    held.slot = programs.slotOf(layout, graph, held.made, microbatch);
    wanted_[programs.slot(part.rank, held.slot)];
    held_[parameter].emplace(part.rank, std::move(held));
  }

  void execute() {
    executor::Hooks<double> hooks;
    hooks.ofPlan = [&](Rank rank, std::int32_t slot, const executor::Value<double>& value) {
      const auto found = wanted_.find(setup_.programs.slot(rank, slot));
      if (found != wanted_.end() && !value.unknown)
        found->second = {value.shape, {value.data(), value.data() + value.size()}, true};
    };
    executor::Draw draw;
    draw.seed = kSeed;
    executor::run<double>(setup_, draw, 1, limits_, {}, hooks);
  }

  struct Numbers {
    Shape shape;
    std::vector<double> elements;
    bool known = false;
  };

  static bool same(const Numbers& a, const Numbers& b) {
    if (a.shape != b.shape) return false;
    double largest = 0, apart = 0;
    for (std::size_t i = 0; i < a.elements.size(); ++i) {
      largest = std::max({largest, std::abs(a.elements[i]), std::abs(b.elements[i])});
      apart = std::max(apart, std::abs(a.elements[i] - b.elements[i]));
    }
    return apart <= kEqual * largest;
  }

  const Numbers& numbers(Rank rank, const Held& held) const {
    return wanted_.at(setup_.programs.slot(rank, held.slot));
  }

  std::string reduction(Rank rank, NodeId n) const {
    const Program& program = setup_.programs.program(rank);
    const Node& node = program.graph.nodes[n];
    const CommunicationSpec& spec = program.communications[node.communication];
    std::string text = executor::nameOf(spec.kind);
    if (spec.reduction == Reduction::kMean) text += " (mean)";
    if (node.location.valid()) text += " at " + problem_.names.text(node.location);
    return text;
  }

  ParameterTable::Row row(const std::string& parameter, const Ranks& ranks) const {
    ParameterTable::Row made;
    made.parameters = {parameter};
    for (std::size_t axis = 0; axis < mesh().axes(); ++axis)
      if (mesh().size(axis) > 1) made.axes.push_back(along(static_cast<std::int32_t>(axis), ranks));
    return made;
  }

  ParameterTable::Axis along(std::int32_t axis, const Ranks& ranks) const {
    using State = ParameterTable::State;
    const auto a = static_cast<std::size_t>(axis);
    ParameterTable::Axis made;
    made.axis = problem_.plan.mesh[a].name;
    bool sharded = false, differs = false, unknown = false, summed = false, several = false;
    std::set<std::int64_t> coordinates;
    std::pair<Rank, NodeId> reducer{ranks.begin()->first, NodeId::none()}, inBackward = reducer;
    for (const auto& [rank, held] : ranks) {
      coordinates.insert(mesh().coordinate(rank, a));
      if (const auto r = held.reductions.find(axis); r != held.reductions.end())
        reducer = {rank, r->second};
      const Reductions& before = held.paths->inBackward(held.made);
      if (const auto r = before.find(axis); r != before.end()) inBackward = {rank, r->second};
      // The first that has it, of those that differ in this axis only.
      Rank first = rank;
      for (std::int32_t c = 0; first == rank && c < mesh().coordinate(rank, a); ++c)
        if (ranks.contains(mesh().moved(rank, a, c))) first = mesh().moved(rank, a, c);
      if (first == rank) continue;
      const auto other = ranks.find(first);
      several = true;
      summed = summed || held.summed;
      sharded = sharded || held.low != other->second.low || held.extent != other->second.extent;
      const Numbers& here = numbers(rank, held);
      const Numbers& there = numbers(first, other->second);
      if (!here.known || !there.known) unknown = true;
      else differs = differs || !same(here, there);
    }
    if (reducer.second.valid()) made.reducedBy = reduction(reducer.first, reducer.second);
    if (!several) {
      made.state = State::kOnSome;
      for (const std::int64_t c : coordinates)
        made.coordinates.push_back(
            coordinates_.empty() ? c : coordinates_[a][static_cast<std::size_t>(c)]);
    } else if (unknown) {
      made.state = State::kUnknown;
    } else if (!differs) {
      made.state = State::kRedundant;
      if (inBackward.second.valid()) {
        made.state = State::kReduced;
        made.reducedInBackward = reduction(inBackward.first, inBackward.second);
      }
    } else {
      made.state = sharded && made.reducedBy.empty() ? State::kSharded : State::kPartial;
    }
    made.shardedAfter = sharded;
    made.summedAfter = summed;
    return made;
  }

  const Problem& problem_;
  const executor::Limits& limits_;
  const std::vector<std::vector<std::int32_t>> coordinates_;
  const executor::Setup setup_;
  std::set<std::string> parameters_;
  std::vector<std::unique_ptr<GradientPaths>> paths_;  // by program
  std::map<std::string, Ranks> held_;                  // by parameter
  std::map<std::int64_t, Numbers> wanted_;             // by slot
};

std::string reasonOf(const std::exception& error) {
  return std::string("not executed: ") + error.what();
}

ParameterTable explained(const Problem& full, const ExplainParametersOptions& options) {
  using Clock = std::chrono::steady_clock;
  executor::Limits limits;
  limits.end = Clock::now() + std::chrono::milliseconds(std::int64_t(options.seconds * 1000));
  limits.maxBytes = static_cast<std::int64_t>(options.memoryMegabytes) << 20;
  limits.cancel = options.cancel;
  ParameterTable table;
  try {
    const ir::FixedAttributes fixed(full);
    const Problem& problem = fixed.problem();
    const bool fits =
        executor::costsAtMost(problem, {.bytes = static_cast<double>(limits.maxBytes) / 2,
                                        .flops = options.seconds / 2 * kFlopsPerSecond});
    if (fits) {
      table = Explanation(problem, limits).run();
    } else {
      ShrinkOptions shrink;
      shrink.seconds = options.seconds / 2;
      shrink.maxElements = kMostElements;
      const Shrunk small = shrinkProblem(problem, shrink);
      table = Explanation(*small.problem, limits, small.coordinatesOf).run();
      table.ofSmallerPlan = true;
    }
  } catch (const Unsupported& error) {
    table.reason = reasonOf(error);
  } catch (const InputError& error) {
    table.reason = reasonOf(error);
  } catch (const executor::CannotRun& error) {
    table.reason = reasonOf(error);
  } catch (const executor::TooLarge& error) {
    table.reason = reasonOf(error);
  } catch (const executor::Stopped&) {
    table.reason = "not executed to its end: it takes longer";
  }
  if (table.reason.empty() && table.rows.empty())
    table.reason = "no output of the model is the gradient of a parameter";
  return table;
}

// Parameters that are alike in everything make one row.
void group(ParameterTable& table) {
  std::vector<ParameterTable::Row> rows;
  for (ParameterTable::Row& row : table.rows) {
    const auto alike = std::find_if(
        rows.begin(), rows.end(), [&](const ParameterTable::Row& r) { return r.axes == row.axes; });
    if (alike == rows.end()) rows.push_back(std::move(row));
    else
      alike->parameters.insert(alike->parameters.end(), row.parameters.begin(),
                               row.parameters.end());
  }
  table.rows = std::move(rows);
}

json toJson(const ParameterTable& table) {
  json rows = json::array();
  for (const auto& row : table.rows) {
    json axes = json::array();
    for (const auto& a : row.axes)
      axes.push_back({a.axis, static_cast<int>(a.state), a.reducedBy, a.reducedInBackward,
                      a.coordinates, a.shardedAfter, a.summedAfter});
    rows.push_back({row.parameters, axes});
  }
  return {table.reason, table.ofSmallerPlan, rows};
}

ParameterTable fromJson(const json& j) {
  ParameterTable table;
  table.reason = j[0].get<std::string>();
  table.ofSmallerPlan = j[1].get<bool>();
  for (const json& r : j[2]) {
    ParameterTable::Row row;
    row.parameters = r[0].get<std::vector<std::string>>();
    for (const json& a : r[1])
      row.axes.push_back(
          {a[0].get<std::string>(), static_cast<ParameterTable::State>(a[1].get<int>()),
           a[2].get<std::string>(), a[3].get<std::string>(), a[4].get<std::vector<std::int64_t>>(),
           a[5].get<bool>(), a[6].get<bool>()});
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

ParameterTable explainParameters(const Problem& problem, const ExplainParametersOptions& options) {
  PoolOptions pool;
  pool.timeoutSeconds = options.seconds + kSlackSeconds;
  pool.memoryMegabytes = options.memoryMegabytes;
  pool.cancel = whenSet(options.cancel);
  const TaskResult result = runAlone(
      [&] {
        ParameterTable table = explained(problem, options);
        group(table);
        const auto bytes = json::to_cbor(toJson(table));
        return std::string(bytes.begin(), bytes.end());
      },
      pool);
  if (result.outcome == TaskOutcome::kDone) return fromJson(json::from_cbor(result.payload));
  ParameterTable table;
  table.reason = "not executed: " + result.reason;
  return table;
}

}  // namespace shardproof
