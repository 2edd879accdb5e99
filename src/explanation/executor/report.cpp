// SPDX-License-Identifier: Apache-2.0
#include "executor/report.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "executor/programs.h"
#include "report/format.h"
#include "util/index.h"

namespace shardproof::executor {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostListed = 20;

const char* nameOf(Agreement a) {
  switch (a) {
    case Agreement::kAgrees:
      return "agrees";
    case Agreement::kDiffers:
      return "differs";
    case Agreement::kUnknown:
      break;
  }
  return "unknown";
}

const char* nameOf(Status s) {
  switch (s) {
    case Status::kRun:
      return "run";
    case Status::kCannotRun:
      return "cannot run";
    case Status::kRefused:
      return "refused";
    case Status::kStopped:
      break;
  }
  return "stopped";
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", x);
  return std::isnan(x) ? "no value" : text;
}

Json jsonNumber(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return x;
}

class Words {
 public:
  explicit Words(const Problem& problem) : problem_(problem), mesh_(problem.plan) {}
  std::string tensor(const EntryResult& e) const {
    return printable(problem_.names.text(
        problem_.model.graph.tensors[problem_.plan.lineage[e.entry].tensor].name));
  }
  Role role(const EntryResult& e) const { return problem_.plan.lineage[e.entry].role; }
  std::string entry(const EntryResult& e) const {
    return tensor(e) + " (/lineage/" + std::to_string(e.entry) + ")";
  }
  std::string element(const EntryResult& e, const Difference& d) const {
    std::string s = tensor(e);
    if (d.position.empty()) return s;
    s += "[";
    for (std::size_t i = 0; i < d.position.size(); ++i)
      s += (i > 0 ? ", " : "") + std::to_string(d.position[i]);
    return s + "]";
  }
  std::string rank(const Difference& d) const {
    std::string s = "rank " + std::to_string(d.rank);
    for (std::size_t a = 0; a < mesh_.axes(); ++a)
      s += (a == 0 ? " (" : " ") + printable(problem_.plan.mesh[a].name) + "=" +
           std::to_string(mesh_.coordinate(d.rank, a));
    if (mesh_.axes() > 0) s += ")";
    return d.microbatch >= 0 ? s + ", microbatch " + std::to_string(d.microbatch) : s;
  }

 private:
  const Problem& problem_;
  const Mesh mesh_;
};

struct Counts {
  std::size_t all = 0, agree = 0, differ = 0, unknown = 0;
  std::size_t elements = 0;
  void add(const EntryResult& e) {
    ++all;
    ++(e.agreement == Agreement::kAgrees    ? agree
       : e.agreement == Agreement::kDiffers ? differ
                                            : unknown);
    elements += at(e.compared);
  }
};

}  // namespace

void writeText(std::ostream& out, const Problem& problem, const Result& result,
               const Options& options) {
  const Words words(problem);
  const Plan& plan = problem.plan;
  Counts outputs, cutPoints;
  for (const EntryResult& e : result.entries)
    (words.role(e) == Role::kOutput ? outputs : cutPoints).add(e);
  const std::string planFile = printable(plan.file), modelFile = printable(problem.model.file);
  const std::string ran =
      result.trials == 1 ? "" : " in " + std::to_string(result.trials) + " trials";
  const bool field = options.arithmetic == Arithmetic::kPrimeField;
  const char* given = options.inputs != nullptr && !options.inputs->empty() ? "given" : "drawn";
  switch (result.outputs(plan)) {
    case Agreement::kAgrees:
      out << "AGREES: plan " << planFile << " computes what model " << modelFile
          << " computes, on the inputs that were " << given << ran << " (" << outputs.agree
          << " of " << outputs.all << " output entries)\n";
      break;
    case Agreement::kDiffers:
      if (result.status == Status::kCannotRun)
        out << "CANNOT RUN: plan " << planFile << ": " << printable(result.reason) << "\n";
      else
        out << "DIFFERS: plan " << planFile << " does not compute what model " << modelFile
            << " computes, on the inputs that were " << given << " (" << outputs.differ << " of "
            << outputs.all << " output entries differ)\n";
      break;
    case Agreement::kUnknown:
      out << "NOT DECIDED: plan " << planFile
          << (result.status == Status::kRun
                  ? ": " + std::to_string(outputs.unknown) + " of " + std::to_string(outputs.all) +
                        " output entries could not be compared"
                  : " was not executed: " + printable(result.reason))
          << "\n";
      break;
  }
  if (result.status == Status::kCannotRun || result.status == Status::kRefused) return;
  if (result.status == Status::kStopped)
    out << "\nStopped: " << printable(result.reason) << "; what was compared until then counts\n";

  const auto list = [&](const char* title, Agreement which, bool output) {
    std::size_t listed = 0, more = 0;
    for (const EntryResult& e : result.entries) {
      if (e.agreement != which || (words.role(e) == Role::kOutput) != output) continue;
      if (listed == kMostListed) {
        ++more;
        continue;
      }
      if (listed++ == 0) out << "\n" << title << "\n";
      out << "  " << words.entry(e) << ": ";
      if (e.difference && which == Agreement::kDiffers) {
        const Difference& d = *e.difference;
        out << "first " << words.element(e, d) << " on " << words.rank(d) << ": model "
            << number(d.logical) << ", plan " << number(d.parallel);
        if (result.trials > 1) out << " (trial " << d.trial << ")";
      } else {
        out << printable(e.reason);
      }
      out << "\n";
    }
    if (more > 0) out << "  and " << more << " more\n";
  };
  list("Outputs that differ:", Agreement::kDiffers, true);
  list("Outputs that could not be compared:", Agreement::kUnknown, true);
  list("Cut points that do not hold:", Agreement::kDiffers, false);
  list("Cut points that could not be compared:", Agreement::kUnknown, false);

  out << "\nExecuted: " << grouped(at(plan.ranks())) << (plan.ranks() == 1 ? " rank, " : " ranks, ")
      << plan.microbatches << (plan.microbatches == 1 ? " microbatch; " : " microbatches; ")
      << counted(at(result.trials), "trial", "trials")
      << (field ? " modulo 2^61 - 1" : " in doubles") << ", seed " << options.seed << "\n";
  out << "Compared: " << grouped(outputs.elements) << " elements of "
      << counted(outputs.all, "output entry", "output entries");
  if (cutPoints.all > 0)
    out << ", " << grouped(cutPoints.elements) << " of "
        << counted(cutPoints.all, "cut point", "cut points");
  out << "\nTime:     " << seconds(result.seconds);
  if (result.flops >= 1e7)
    out << ", " << number(std::round(result.flops / 1e7) / 100) << " GFLOP in contractions";
  out << "\nMemory:   " << megabytes(at(result.peakBytes)) << " of arrays at most\n";
  if (field)
    out << "\nModulo a prime only agreement means something: not all laws of the real functions "
           "hold there.\n";
}

std::string jsonText(const Problem& problem, const Result& result, const Options& options) {
  const Words words(problem);
  Json entries = Json::array();
  for (const EntryResult& e : result.entries) {
    Json entry{{"entry", e.entry},
               {"tensor", words.tensor(e)},
               {"role", words.role(e) == Role::kOutput ? "output" : "cut_point"},
               {"agreement", nameOf(e.agreement)},
               {"compared", e.compared},
               {"undefined", e.undefined},
               {"distance", jsonNumber(e.distance)},
               {"reason", e.reason}};
    if (e.difference) {
      const Difference& d = *e.difference;
      entry["difference"] = {{"shard", d.shard},
                             {"rank", d.rank},
                             {"microbatch", d.microbatch >= 0 ? Json(d.microbatch) : Json(nullptr)},
                             {"position", d.position},
                             {"model", jsonNumber(d.logical)},
                             {"plan", jsonNumber(d.parallel)},
                             {"trial", d.trial}};
    }
    entries.push_back(std::move(entry));
  }
  const Json report{
      {"format", "shardproof-run"},
      {"version", 1},
      {"model", problem.model.file},
      {"plan", problem.plan.file},
      {"status", nameOf(result.status)},
      {"reason", result.reason},
      {"outputs", nameOf(result.outputs(problem.plan))},
      {"arithmetic", options.arithmetic == Arithmetic::kDoubles ? "doubles" : "prime"},
      {"seed", options.seed},
      {"trials", result.trials},
      {"seconds", result.seconds},
      {"flops", result.flops},
      {"peak_bytes", result.peakBytes},
      {"entries", std::move(entries)}};
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace shardproof::executor
