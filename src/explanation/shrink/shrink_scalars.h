// SPDX-License-Identifier: Apache-2.0
// Factors that stand for sizes. Operators that divide by a number of positions or members (mean,
// cross_entropy, all_reduce with "mean") do so by themselves at any size. A number in the file does
// not: a model that divides by 262144 tokens, a plan that divides by 8192 and then by 32 ranks.
// When these sizes change, so must the numbers.
//
// One function for all numbers of model and plan: a factor n or 1/n (n a whole number above 3, in
// mul and div, as alpha, or filling a constant) becomes n' or 1/n' with n' the new value of a
// product of sizes whose full value is n. Where both sides have a factor, they still have the same
// one, whatever it stands for. Where only one side has it, what it stands for decides whether a
// right plan stays right: it is taken for axes and microbatches (by a plan), else for a dimension
// of some tensor, else for neighbouring dimensions of one. Where several dimensions come into
// question they are made to agree, or stay as they are; where several sets of axes do and disagree,
// the ranks cannot be left out. A factor of one side alone that is no such product stays, and is
// reported.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shardproof/graph.h"
#include "shrink/kept_ranks.h"
#include "shrink/plan_relations.h"

namespace shardproof {

class SizeFactors {
 public:
  // Adds what the sizes must meet to `program`, whose variables are the classes of
  // `relations.lines`. Throws Unsupported.
  SizeFactors(const Problem& problem, const KeptRanks& kept, const PlanRelations& relations,
              IntegerProgram& program);

  // After the lines have their new sizes: the new value of a factor.
  Rational mapped(const Rational& factor, const PlanLines& lines) const;
  const std::vector<std::string>& unexplained() const { return unexplained_; }

 private:
  struct SizeProduct {
    std::int64_t factor = 1;  // times the new sizes of these lines
    std::vector<std::int32_t> lines;
  };
  std::map<std::int64_t, SizeProduct> products_;
  std::vector<std::string> unexplained_;
};

// The attribute of an operator that is a factor, or null.
const char* factorAttribute(const std::string& op);

}  // namespace shardproof
