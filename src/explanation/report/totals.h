// SPDX-License-Identifier: Apache-2.0
// What the results of several plans come to.
#pragma once

#include <cstddef>

#include "shardproof/report.h"

namespace shardproof {

struct Totals {
  std::size_t equivalent = 0, conditional = 0, notEquivalent = 0, undecided = 0, errors = 0;
  std::size_t classes = 0, classesFromCache = 0;
  double seconds = 0;

  void add(const PlanResult& result) {
    if (!result.report) {
      ++errors;
      return;
    }
    const Report& report = *result.report;
    ++(report.verdict == Verdict::kEquivalent      ? equivalent
       : report.verdict == Verdict::kConditional   ? conditional
       : report.verdict == Verdict::kNotEquivalent ? notEquivalent
                                                   : undecided);
    classes += report.statistics.classes;
    classesFromCache += report.statistics.classesFromCache;
    seconds += report.statistics.secondsTotal;
  }
};

}  // namespace shardproof
