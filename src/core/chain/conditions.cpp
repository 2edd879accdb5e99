// SPDX-License-Identifier: Apache-2.0
#include "chain/conditions.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>

namespace shardproof {

bool allows(const std::string& pattern, const std::string& what) {
  return pattern == what || ::fnmatch(pattern.c_str(), what.c_str(), 0) == 0;
}

std::vector<Assumption> judgedAssumptions(const Capture& capture,
                                          const std::vector<std::string>& accepted) {
  std::vector<Assumption> assumptions = capture.assumptions;
  for (Assumption& assumption : assumptions)
    assumption.accepted =
        std::find(accepted.begin(), accepted.end(), assumption.name) != accepted.end();
  return assumptions;
}

std::vector<NotCompared> judgedNotCompared(const Capture& capture,
                                           const std::vector<std::string>& allowed) {
  std::vector<NotCompared> items = capture.notCompared;
  for (NotCompared& item : items)
    item.allowed = std::any_of(allowed.begin(), allowed.end(), [&](const std::string& pattern) {
      return allows(pattern, item.what);
    });
  return items;
}

std::vector<UnmetCondition> unmetConditions(const std::vector<Assumption>& assumptions,
                                            const std::vector<NotCompared>& notCompared) {
  std::vector<UnmetCondition> conditions;
  std::set<std::string> named;
  for (std::size_t i = 0; i < assumptions.size(); ++i) {
    const Assumption& a = assumptions[i];
    if (a.kind != AssumptionClass::kRisk || a.accepted || !named.insert(a.name).second) continue;
    conditions.push_back({"the proof assumes " + a.name + ": " + a.text, a.name, false,
                          "/capture/assumptions/" + std::to_string(i)});
  }
  for (std::size_t i = 0; i < notCompared.size(); ++i) {
    const NotCompared& item = notCompared[i];
    if (item.allowed) continue;
    conditions.push_back(
        {item.what + " is not compared" + (item.because.empty() ? "" : ", because " + item.because),
         item.what, true, "/capture/not_compared/" + std::to_string(i)});
  }
  return conditions;
}

std::vector<UnmetCondition> unmetConditions(const Capture& capture, const VerifyOptions& options) {
  return unmetConditions(judgedAssumptions(capture, options.accept),
                         judgedNotCompared(capture, options.allowUncompared));
}

}  // namespace shardproof
