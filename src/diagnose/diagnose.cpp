#include "diagnose/diagnose.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include <nlohmann/json.hpp>

#include "diagnose/causes.h"
#include "reader/reader.h"
#include "report/causes.h"
#include "shardproof/error.h"
#include "shardproof/verify.h"
#include "worker/pool.h"

namespace shardproof {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kSlackSeconds = 2;  // until a process that does not keep to its time is killed

// One process that may be killed; nothing: it was.
std::string inProcess(const DiagnoseOptions& options, double seconds,
                      const std::function<std::string()>& work) {
  PoolOptions pool;
  pool.timeoutSeconds = seconds;
  pool.memoryMegabytes = options.memoryMegabytes;
  pool.cancel = options.cancel;
  TaskResult result = runAlone(work, pool);
  return result.outcome == TaskOutcome::kDone ? std::move(result.payload) : std::string();
}

}  // namespace

std::string diagnosePlan(const Problem& problem, Report& report, const std::string& modelFile,
                         const DiagnoseOptions& options) {
  using Clock = diagnose::Clock;
  if (report.verdict == Verdict::kEquivalent || (report.defects.empty() && report.suspects.empty()))
    return {};
  const auto start = Clock::now();
  const auto since = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const std::string found = inProcess(options, options.seconds + kSlackSeconds, [&] {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(options.seconds * 0.7));
    const diagnose::Causes causes = diagnose::causesOf(problem, report, modelFile, end);
    Json json = {
        {"causes", Json::array()}, {"model", causes.mendedModel}, {"plan", causes.mendedPlan}};
    for (const Cause& cause : causes.causes) json["causes"].push_back(toJson(cause));
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  });
  std::string mended;
  if (!found.empty()) {
    const Json json = Json::parse(found);
    for (const Json& cause : json["causes"]) report.causes.push_back(causeFromJson(cause));
    mended = json["plan"].get<std::string>();
    if (!mended.empty()) {
      const std::string verdict =
          inProcess(options, std::max(1.0, options.seconds - since()) + kSlackSeconds, [&] {
            VerifyOptions verifyOptions;
            verifyOptions.jobs = 1;
            verifyOptions.inProcess = true;
            verifyOptions.timeoutSeconds = options.seconds;
            const auto plan = readProblemText(json["model"].get<std::string>(), mended);
            return std::string(verify(*plan, verifyOptions).verdict == Verdict::kEquivalent
                                   ? "proved"
                                   : "not proved");
          });
      if (verdict != "proved") mended.clear();
      for (Cause& cause : report.causes)
        if (cause.mend) cause.mend->proved = !mended.empty();
    }
  }
  report.statistics.secondsByPhase["diagnose"] = since();
  report.statistics.secondsTotal += since();
  return mended;
}

}  // namespace shardproof
