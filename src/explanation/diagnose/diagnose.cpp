// SPDX-License-Identifier: Apache-2.0
#include "diagnose/diagnose.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <sys/resource.h>

#include "attempts/attempts.h"
#include "diagnose/causes.h"
#include "ir/attribute_steps.h"
#include "reader/reader.h"
#include "report/causes.h"
#include "shardproof/error.h"
#include "shardproof/verify.h"
#include "util/stopwatch.h"
#include "worker/pool.h"

namespace shardproof {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kSlackSeconds = 2;  // until a process that does not keep to its time is killed
// Of the proof of a fixed plan: in the seconds of a diagnosis, and in those that the verdict took.
constexpr double kProofPerDiagnosis = 0.5, kProofPerVerdict = 2;

// One process that may be killed; nothing: it was.
std::string inProcess(const DiagnoseOptions& options, double seconds,
                      const std::function<std::string()>& work) {
  PoolOptions pool;
  pool.timeoutSeconds = seconds;
  pool.memoryMegabytes = options.memoryMegabytes;
  pool.cancel = whenSet(options.cancel);
  TaskResult result = runAlone(work, pool);
  return result.outcome == TaskOutcome::kDone ? std::move(result.payload) : std::string();
}

// Of this process, which is ended then.
void limitProcessorTime(double seconds) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CPU, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, static_cast<rlim_t>(std::ceil(seconds)));
  ::setrlimit(RLIMIT_CPU, &limit);
}

// Programs that differ in attributes that move are one in the file, and so are their nodes.
void nameOnce(std::vector<NodePlace>& nodes) {
  std::set<std::pair<bool, std::string>> named;
  std::erase_if(nodes, [&](const NodePlace& n) {
    return !n.pointer.empty() && !named.emplace(n.inPlan, n.pointer).second;
  });
}

}  // namespace

std::string diagnosePlan(const Problem& problem, Report& report, const std::string& modelFile,
                         const DiagnoseOptions& options) {
  if (isProved(report.verdict) || (report.defects.empty() && report.suspects.empty())) return {};
  const auto start = std::chrono::steady_clock::now();
  const auto since = [&] { return secondsSince(start); };
  // How long a process may take for so much processor time.
  const auto within = [&](double seconds) {
    return std::max(0.1, std::min(kMostSecondsPerSecond * seconds + kSlackSeconds,
                                  options.wallSeconds - since()));
  };
  const std::string found = inProcess(options, within(options.seconds), [&] {
    const auto end =
        ProcessorClock::now() + std::chrono::duration_cast<ProcessorClock::duration>(
                                    std::chrono::duration<double>(options.seconds * 0.7));
    const ir::FixedAttributes fixed(problem);
    diagnose::Causes causes = diagnose::causesOf(fixed.problem(), report, modelFile, end);
    for (Cause& cause : causes.causes) nameOnce(cause.nodes);
    Json json = {
        {"causes", Json::array()}, {"model", causes.fixedModel}, {"plan", causes.fixedPlan}};
    for (const Cause& cause : causes.causes) json["causes"].push_back(toJson(cause));
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  });
  std::string fixed;
  if (!found.empty()) {
    const Json json = Json::parse(found);
    for (const Json& cause : json["causes"]) report.causes.push_back(causeFromJson(cause));
    fixed = json["plan"].get<std::string>();
    if (!fixed.empty()) {
      const double mostOfProof = std::max(kProofPerDiagnosis * options.seconds,
                                          kProofPerVerdict * report.statistics.secondsTotal);
      const std::string verdict = inProcess(options, within(mostOfProof), [&] {
        limitProcessorTime(mostOfProof);
        VerifyOptions verifyOptions;
        verifyOptions.jobs = 1;
        verifyOptions.inProcess = true;
        verifyOptions.stageSeconds = kMostSecondsPerSecond * mostOfProof;
        // As the plan itself was: one without lemmas needs them as much as that.
        auto plan = readProblemText(json["model"].get<std::string>(), fixed, ir::Programs::kJoined);
        const Report again = verifyInferring(plan, verifyOptions, Infer::kAuto);
        return std::string(isProved(again.verdict) ? "proved" : "not proved");
      });
      if (verdict != "proved") fixed.clear();
      for (Cause& cause : report.causes)
        if (cause.fix) cause.fix->proved = !fixed.empty();
    }
  }
  report.statistics.secondsByPhase["diagnose"] = since();
  report.statistics.secondsTotal += since();
  return fixed;
}

}  // namespace shardproof
