// SPDX-License-Identifier: Apache-2.0
// A sweep for people: a row as soon as a configuration is done, and what there is to say at the
// end.
#pragma once

#include <string>
#include <vector>

#include "sweep/baseline.h"
#include "sweep/result.h"

namespace shardproof::sweep {

class Table {
 public:
  explicit Table(const std::vector<Result>& results);  // for the width of the names
  std::string header() const;
  std::string row(const Result& result) const;

 private:
  std::size_t nameWidth_;
};

// What is wrong with those that are not as expected, in the words of the report.
std::string detailsText(const Sweep& sweep);
std::string changesText(const std::vector<Change>& changes, const std::string& baseline);
std::string summaryText(const Sweep& sweep);

}  // namespace shardproof::sweep
