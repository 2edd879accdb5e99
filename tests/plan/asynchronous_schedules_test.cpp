// SPDX-License-Identifier: Apache-2.0
// Asynchronous communication: random small programs, run step by step in every order in which the
// ranks can go on, against what the check of waits and the plain executor say.
#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <unordered_set>

#include <gtest/gtest.h>

#include "executor/interpret.h"
#include "plan/checks.h"
#include "plan/defects.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;

// One node of a rank. Who meets: those of one event that have the same members.
struct Step {
  std::optional<int> event;  // none: it computes
  std::vector<int> members;  // ranks, ascending
  bool collective = false, begins = false;
  std::vector<std::size_t> waits;  // earlier steps of this rank that began a communication
};
using RankProgram = std::vector<Step>;

// What one rank does, one thing after the other, and what the communication library does beside
// it. A rank waits for the handles of its next node; a node that computes is then done; a
// communication is handed over to the library, and, if it has no handle, waited for. The library
// carries out what all members have handed over, of the collectives of one process group on each
// rank the first only.
class Machine {
 public:
  explicit Machine(const std::vector<RankProgram>& ranks) : ranks_(ranks) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (std::size_t s = 0; s < ranks[r].size(); ++s) {
        const Step& step = ranks[r][s];
        if (!step.event) continue;
        const auto [it, added] =
            numbers_.emplace(std::pair(*step.event, step.members), meetings_.size());
        if (added) meetings_.emplace_back();
        meetings_[it->second].emplace_back(r, s);
      }
    }
  }

  // Does it come to an end? Every order is tried; they must agree.
  bool ends() const {
    std::unordered_set<std::uint64_t> seen;
    std::deque<State> todo{
        {std::vector<std::size_t>(ranks_.size(), 0), std::vector<char>(ranks_.size(), 0), 0}};
    int ended = 0, stuck = 0;
    while (!todo.empty()) {
      const State state = std::move(todo.front());
      todo.pop_front();
      if (!seen.insert(key(state)).second) continue;
      const std::vector<State> next = after(state);
      if (next.empty()) ++(complete(state) ? ended : stuck);
      todo.insert(todo.end(), next.begin(), next.end());
    }
    EXPECT_TRUE(ended == 0 || stuck == 0) << "it depends on the order";
    return stuck == 0;
  }

 private:
  struct State {
    std::vector<std::size_t> at;  // the next step of each rank
    std::vector<char> waiting;    // for it: it is handed over
    std::uint64_t done;           // meetings
  };
  // At most 4 ranks of 14 steps and 14 meetings.
  static std::uint64_t key(const State& state) {
    std::uint64_t bits = state.done;
    for (std::size_t r = 0; r < state.at.size(); ++r)
      bits = bits << 5 | state.at[r] << 1 | (state.waiting[r] != 0 ? 1 : 0);
    return bits;
  }

  std::uint64_t bit(std::size_t rank, std::size_t step) const {
    const Step& s = ranks_[rank][step];
    return std::uint64_t{1} << numbers_.at({*s.event, s.members});
  }
  bool complete(const State& state) const {
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      if (state.at[r] < ranks_[r].size()) return false;
    return state.done + 1 == std::uint64_t{1} << meetings_.size();
  }
  bool first(const State& state, std::size_t rank, std::size_t step) const {
    const Step& own = ranks_[rank][step];
    for (std::size_t s = 0; own.collective && s < step; ++s) {
      const Step& before = ranks_[rank][s];
      if (before.collective && before.members == own.members && (state.done & bit(rank, s)) == 0)
        return false;
    }
    return true;
  }

  std::vector<State> after(const State& state) const {
    std::vector<State> result;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::size_t at = state.at[r];
      if (at == ranks_[r].size()) continue;
      const Step& step = ranks_[r][at];
      State next = state;
      if (state.waiting[r] != 0) {
        if ((state.done & bit(r, at)) == 0) continue;
        next.waiting[r] = 0;
        ++next.at[r];
      } else {
        if (!std::all_of(step.waits.begin(), step.waits.end(),
                         [&](std::size_t s) { return (state.done & bit(r, s)) != 0; }))
          continue;
        if (step.event && !step.begins) next.waiting[r] = 1;
        else ++next.at[r];
      }
      result.push_back(std::move(next));
    }
    for (std::size_t m = 0; m < meetings_.size(); ++m) {
      const std::uint64_t own = std::uint64_t{1} << m;
      const bool possible = (state.done & own) == 0 &&
                            std::all_of(meetings_[m].begin(), meetings_[m].end(), [&](auto member) {
                              const auto& [r, s] = member;
                              const bool handedOver =
                                  s < state.at[r] || (s == state.at[r] && state.waiting[r] != 0);
                              return handedOver && first(state, r, s);
                            });
      if (!possible) continue;
      State next = state;
      next.done |= own;
      result.push_back(std::move(next));
    }
    return result;
  }

  const std::vector<RankProgram>& ranks_;
  std::map<std::pair<int, std::vector<int>>, std::size_t> numbers_;
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> meetings_;  // rank, step
};

// Collectives of several process groups and messages on a mesh r x f, in one order for all or in
// crossed ones, some of them with handles. Each coordinate of r has a program.
class RandomPlan {
 public:
  explicit RandomPlan(std::uint32_t seed) : random_(seed) {
    columns_ = 2 + below(2);
    blockingOutOf_ = below(2) == 0 ? 2 : 8;
    rows_ = columns_ == 2 ? 1 + below(2) : 1;
    draft_ = test::draft(R"({"tensors": {"x": {"shape": [)" + std::to_string(columns_ * rows_) +
                             R"(], "kind": "input"}}, "nodes": [], "outputs": ["x"]})",
                         R"({"mesh": [["r", )" + std::to_string(columns_) + R"(], ["f", )" +
                             std::to_string(rows_) + R"(]], "programs": [], "lineage": []})");
    for (const char* role : {"input", "output"})
      draft_.plan["lineage"].push_back({{"tensor", "x"},
                                        {"role", role},
                                        {"shards",
                                         {{{"box", {{0, 1}}},
                                           {"step", {{"r", {rows_}}, {"f", {1}}}},
                                           {"parts", {{{"local", "x"}}}}}}}});
    std::vector<Event> events;
    for (int e = 2 + below(columns_ * rows_ == 4 ? 3 : 5); e > 0; --e) events.push_back(event());
    machine_.resize(at(columns_ * rows_));
    for (int r = 0; r < columns_; ++r) program(r, events);
  }
  const Draft& draft() const { return draft_; }
  const std::vector<RankProgram>& ranks() const { return machine_; }

 private:
  struct Event {
    std::string op;
    std::vector<int> columns;       // of members, in group order; of a message sender and receiver
    bool allRows = false;           // members are in all rows; else a meeting in each
    std::optional<Json> groupAxes;  // instead of a list
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }

  Event event() {
    std::vector<int> columns(at(columns_));
    for (int r = 0; r < columns_; ++r) columns[at(r)] = r;
    std::shuffle(columns.begin(), columns.end(), random_);
    if (below(3) == 0) {
      columns.resize(2);
      return {"message", columns, false, std::nullopt};
    }
    const char* const ops[] = {"all_reduce", "all_reduce", "barrier", "broadcast"};
    Event e{ops[below(4)], columns, rows_ > 1 && below(3) == 0, std::nullopt};
    if (below(2) == 0) e.columns.resize(at(1 + below(columns_)));
    const bool allColumns = static_cast<int>(e.columns.size()) == columns_;
    // A root is in one row, and a program in all.
    e.allRows = e.allRows && e.op != "broadcast" && (allColumns || e.columns.size() == 1);
    if (e.allRows) e.groupAxes = allColumns ? Json{"f", "r"} : Json{"f"};
    else if (allColumns && below(2) == 0) e.groupAxes = Json{"r"};
    return e;
  }

  std::vector<int> members(const Event& e, int row) const {
    std::vector<int> ranks;
    for (const int column : e.columns)
      for (int f = 0; f < rows_; ++f)
        if (e.allRows || f == row) ranks.push_back(column * rows_ + f);
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  void program(int r, const std::vector<Event>& events) {
    std::vector<int> order;
    for (std::size_t e = 0; e < events.size(); ++e)
      if (std::count(events[e].columns.begin(), events[e].columns.end(), r) > 0)
        order.push_back(static_cast<int>(e));
    for (int k = below(3); k > 0 && order.size() > 1; --k)
      std::swap(order[at(below(static_cast<int>(order.size())))],
                order[at(below(static_cast<int>(order.size())))]);
    Json nodes = Json::array(), tensors = Json::parse(R"({"x": {"shape": [1], "kind": "input"}})");
    std::vector<std::string> values{"x"};                          // that may be read
    std::map<std::size_t, std::pair<std::string, Json>> underWay;  // by node: handle, result
    const auto add = [&](Json node, Step step, const Event* e) {
      std::vector<std::size_t> waited;
      for (const auto& [n, begun] : underWay) {
        if (below(3) > 0) continue;
        node["waits"].push_back(begun.first);
        step.waits.push_back(n);
        for (const Json& result : begun.second) values.push_back(result.get<std::string>());
        if (below(8) > 0) waited.push_back(n);  // else perhaps once more
      }
      for (const std::size_t n : waited) underWay.erase(n);
      for (Json& operand : node["in"]) operand = values[at(below(static_cast<int>(values.size())))];
      for (const Json& result : node["out"])
        tensors[result.get<std::string>()] = Json::parse(R"({"shape": [1]})");
      if (step.begins) {
        const std::string handle = "h" + std::to_string(nodes.size());
        node["handle"] = handle;
        underWay.emplace(nodes.size(), std::pair(handle, node["out"]));
      } else {
        for (const Json& result : node["out"]) values.push_back(result.get<std::string>());
      }
      nodes.push_back(node);
      for (int f = 0; f < rows_; ++f) {
        if (e != nullptr) step.members = members(*e, f);
        machine_[at(r * rows_ + f)].push_back(step);
      }
    };
    for (const int number : order) {
      const Event& e = events[at(number)];
      const std::string name = std::to_string(number);
      if (below(3) == 0)
        add({{"op", "neg"}, {"in", {"x"}}, {"out", {"n" + name}}}, Step{}, nullptr);
      Json node{{"op", e.op}, {"in", Json::array()}, {"out", Json::array()}, {"comm", "c" + name}};
      bool gives = e.op == "all_reduce", takes = gives;
      if (e.op == "message") {
        gives = e.columns[0] == r, takes = !gives;
        node["op"] = gives ? "send" : "recv";
        node[gives ? "to" : "from"] = {{"r", e.columns[gives ? 1 : 0]}};
      } else {
        if (e.op == "broadcast") {
          gives = e.columns[0] == r, takes = !gives;
          node["root"] = {{"r", e.columns[0]}};
        }
        if (e.groupAxes) node["group"] = *e.groupAxes;
        else
          for (const int column : e.columns) node["group_at"].push_back({{"r", column}});
      }
      if (gives) node["in"].push_back("x");
      if (takes) node["out"].push_back("v" + name);
      add(node, {number, {}, e.op != "message", below(blockingOutOf_) > 0, {}}, &e);
    }
    Json program{{"at", {{"r", r}}}, {"tensors", tensors}, {"nodes", nodes}};
    if (below(2) == 0) program["order"] = "issue";
    for (const auto& [n, begun] : underWay)
      if (below(2) == 0) program["waits"].push_back(begun.first);
    draft_.plan["programs"].push_back(program);
  }

  std::mt19937 random_;
  int columns_ = 0, rows_ = 0, blockingOutOf_ = 0;
  Draft draft_;
  std::vector<RankProgram> machine_;
};

Draft withoutHandles(Draft d) {
  for (Json& program : d.plan["programs"]) {
    program.erase("waits");
    for (Json& node : program["nodes"])
      for (const char* field : {"handle", "waits"}) node.erase(field);
  }
  return d;
}

TEST(AsynchronousSchedules, AsEveryOrderOfStepsHasIt) {
  int runs = 0, deadlocks = 0, runByHandles = 0;
  for (std::uint32_t seed = 0; static_cast<int>(seed) < test::randomCases(2000); ++seed) {
    const RandomPlan plan(seed);
    const auto problem = test::read(plan.draft());
    const auto defects = test::defectsOf(*problem);
    const bool ends = Machine(plan.ranks()).ends();
    const auto all = [&] { return std::to_string(seed) + "\n" + plan.draft().plan.dump(1); };
    ASSERT_TRUE(defects.empty() || defects.front().kind == DefectKind::kDeadlock)
        << defects.front().message << "\n"
        << all();
    ASSERT_EQ(defects.empty(), ends) << (defects.empty() ? "runs" : defects.front().message) << "\n"
                                     << all();
    ASSERT_EQ(executor::execute(*problem, {}).status == executor::Status::kRun, ends) << all();
    ++(ends ? runs : deadlocks);
    if (ends && seed % 8 == 0)
      runByHandles += !test::defectsOf(withoutHandles(plan.draft())).empty();
  }
  EXPECT_GT(runs, test::randomCases(500));
  EXPECT_GT(deadlocks, test::randomCases(500));
  EXPECT_GT(runByHandles, test::randomCases(20));
}

}  // namespace
}  // namespace shardproof
