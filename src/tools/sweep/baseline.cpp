// SPDX-License-Identifier: Apache-2.0
#include "sweep/baseline.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "report/format.h"

namespace shardproof::sweep {
namespace {

bool hasRun(const Result& result) {
  return result.state != State::kNotRun && result.state != State::kInterrupted;
}

int goodness(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return 4;
    case Outcome::kConditional:
      return 3;
    case Outcome::kSkipped:
      return 2;
    case Outcome::kFailed:
    case Outcome::kUndecided:
      return 1;
    default:
      return 0;
  }
}

std::string saying(const Result& result) {
  std::string text =
      result.state == State::kDone ? shardproof::toString(*result.verdict) : toString(result.state);
  std::replace(text.begin(), text.end(), '-', ' ');
  return text;
}

std::map<std::string, const Result*> byName(const Sweep& sweep) {
  std::map<std::string, const Result*> results;
  for (const Result& result : sweep.results)
    if (hasRun(result)) results.emplace(result.name, &result);
  return results;
}

class Comparison {
 public:
  explicit Comparison(std::vector<Change>& changes) : changes_(changes) {}

  void one(const Result& before, const Result& now) {
    name_ = now.name;
    outcome(before, now);
    input(before, now);
    if (!before.verdict || !now.verdict) return;
    counts(before.figures, now.figures);
    time(before, now);
  }

 private:
  void add(ChangeKind kind, std::string text) {
    changes_.push_back({name_, kind, std::move(text)});
  }

  void outcome(const Result& before, const Result& now) {
    const Outcome a = outcomeOf(before), b = outcomeOf(now);
    if (a == b && before.verdict == now.verdict) return;
    std::string text = saying(before) + " -> " + saying(now);
    if (before.expect != now.expect)
      text += std::string(" (expected: ") + shardproof::toString(before.expect) + " -> " +
              shardproof::toString(now.expect) + ")";
    if (!now.reason.empty()) text += ": " + now.reason;
    add(goodness(b) < goodness(a)   ? ChangeKind::kWorse
        : goodness(b) > goodness(a) ? ChangeKind::kBetter
                                    : ChangeKind::kOther,
        std::move(text));
  }

  void input(const Result& before, const Result& now) {
    if (before.configuration != now.configuration)
      return add(ChangeKind::kInput,
                 "was " + before.configuration.dump() + ", is " + now.configuration.dump());
    if (!before.inputs || !now.inputs) return;
    for (std::size_t i = 0; i < std::min(before.inputs->size(), now.inputs->size()); ++i) {
      const InputFile &a = (*before.inputs)[i], &b = (*now.inputs)[i];
      if (!a.sameContent(b)) add(ChangeKind::kInput, b.path + " has another content");
    }
  }

  void counts(const Figures& before, const Figures& now) {
    struct Field {
      const char* name;
      std::size_t Figures::*value;
    };
    static constexpr std::array kFields = {
        Field{"ranks", &Figures::ranks}, Field{"outputs", &Figures::outputs},
        Field{"stages", &Figures::stages}, Field{"classes", &Figures::classes}};
    std::string text;
    for (const Field& field : kFields) {
      const std::size_t a = before.*field.value, b = now.*field.value;
      if (a != b)
        text += (text.empty() ? "" : ", ") + std::string(field.name) + " " + grouped(a) + " -> " +
                grouped(b);
    }
    if (!text.empty()) add(ChangeKind::kCounts, std::move(text));
  }

  void time(const Result& before, const Result& now) {
    const double a = before.seconds(), b = now.seconds();
    const double less = std::min(a, b), more = std::max(a, b);
    if (more - less < kTimeFloorSeconds || more < kTimeFactor * less) return;
    std::string text = shardproof::seconds(a) + " -> " + shardproof::seconds(b);
    std::array<char, 40> ratio{};
    if (a > 0) {
      std::snprintf(ratio.data(), ratio.size(), " (%.2fx)", b / a);
      text += ratio.data();
    }
    if (before.figures.classesFromCache != now.figures.classesFromCache)
      text += ", classes from the cache " + grouped(before.figures.classesFromCache) + " -> " +
              grouped(now.figures.classesFromCache);
    add(b > a ? ChangeKind::kSlower : ChangeKind::kFaster, std::move(text));
  }

  std::vector<Change>& changes_;
  std::string name_;
};

}  // namespace

std::vector<Change> compare(const Sweep& before, const Sweep& now) {
  std::vector<Change> changes;
  Comparison comparison(changes);
  const auto old = byName(before), current = byName(now);
  for (const Result& result : now.results) {
    if (!hasRun(result)) continue;
    if (const auto it = old.find(result.name); it != old.end()) comparison.one(*it->second, result);
    else changes.push_back({result.name, ChangeKind::kNew, saying(result)});
  }
  for (const Result& result : before.results) {
    const bool listed = std::any_of(now.results.begin(), now.results.end(),
                                    [&](const Result& r) { return r.name == result.name; });
    if (hasRun(result) && !listed)
      changes.push_back({result.name, ChangeKind::kRemoved, "was " + saying(result)});
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.kind < b.kind; });
  return changes;
}

bool lostCoverage(const Sweep& before, const Sweep& now) {
  const auto old = byName(before);
  return std::any_of(now.results.begin(), now.results.end(), [&](const Result& result) {
    const auto it = old.find(result.name);
    return result.state == State::kSkipped && it != old.end() && it->second->state == State::kDone;
  });
}

Json toJson(const std::vector<Change>& changes) {
  Json list = Json::array();
  for (const Change& change : changes)
    list.push_back({{"name", change.name}, {"kind", toString(change.kind)}, {"text", change.text}});
  return list;
}

const char* toString(ChangeKind kind) {
  switch (kind) {
    case ChangeKind::kWorse:
      return "worse";
    case ChangeKind::kBetter:
      return "better";
    case ChangeKind::kOther:
      return "other";
    case ChangeKind::kNew:
      return "new";
    case ChangeKind::kRemoved:
      return "removed";
    case ChangeKind::kInput:
      return "input";
    case ChangeKind::kCounts:
      return "counts";
    case ChangeKind::kSlower:
      return "slower";
    case ChangeKind::kFaster:
      return "faster";
  }
  return "other";
}

}  // namespace shardproof::sweep
