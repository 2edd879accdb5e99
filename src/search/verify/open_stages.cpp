// SPDX-License-Identifier: Apache-2.0
#include "verify/open_stages.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "cache/cache_file.h"
#include "check/checker.h"
#include "shardproof/error.h"
#include "stages/canonical_reader.h"

namespace shardproof {
namespace {

constexpr const char* kOpenStagesFormat = "shardproof-open-stages 1";
constexpr std::size_t kMostFormBytes = std::size_t{1} << 30;

const char* nameOf(Checker checker) { return checker == Checker::kZ3 ? "z3" : "auto"; }

}  // namespace

std::optional<StoredProof> OpenStages::find(const std::string& form, Checker checker) {
  if (behind_)
    if (auto known = behind_->find(form, checker)) return known;
  forms_.insert(form);
  *cancel_ = true;
  return std::nullopt;
}

void OpenStages::add(const std::string& form, Checker checker, const StoredProof& proof) {
  if (behind_) behind_->add(form, checker, proof);
}

void OpenStages::flush() {
  if (behind_) behind_->flush();
}

std::string openStagesText(const std::set<std::string>& forms, Checker checker) {
  std::string text =
      std::string(kOpenStagesFormat) + "\n" + proofVersion() + "\n" + nameOf(checker) + "\n";
  for (const std::string& form : forms) text += std::to_string(form.size()) + "\n" + form + "\n";
  return text;
}

OpenStagesFile readOpenStages(std::istream& in, const std::string& file) {
  const auto line = [&] {
    std::string text;
    std::getline(in, text);
    return text;
  };
  if (const std::string format = line(); format != kOpenStagesFormat)
    throw InputError(file, "line 1",
                     std::string("expected \"") + kOpenStagesFormat +
                         "\": a list of stages that `shardproof verify --open-stages` wrote");
  if (const std::string version = line(); version != proofVersion())
    throw InputError(file, "line 2",
                     "found \"" + version + "\", expected \"" + proofVersion() +
                         "\": the stages are of another version of shardproof; use the same one "
                         "everywhere");
  const std::string checker = line();
  if (checker != nameOf(Checker::kAuto) && checker != nameOf(Checker::kZ3))
    throw InputError(file, "line 3", "found \"" + checker + "\", expected \"auto\" or \"z3\"");
  OpenStagesFile open{.checker = checker == nameOf(Checker::kZ3) ? Checker::kZ3 : Checker::kAuto,
                      .forms = {}};
  while (in.peek() != std::istream::traits_type::eof()) {
    const std::string place = "stage " + std::to_string(open.forms.size() + 1);
    const std::string length = line();
    const bool isNumber = !length.empty() && length.size() <= 10 &&
                          length.find_first_not_of("0123456789") == std::string::npos;
    const std::size_t bytes = isNumber ? std::stoull(length) : kMostFormBytes + 1;
    if (bytes > kMostFormBytes)
      throw InputError(file, place, "found no length where one was expected: the file is damaged");
    std::string form(bytes, '\0');
    in.read(form.data(), static_cast<std::streamsize>(bytes));
    if (!in || in.get() != '\n')
      throw InputError(file, place,
                       "expected " + length + " bytes and the end of a line: the file is damaged");
    open.forms.push_back(std::move(form));
  }
  return open;
}

ProveOpenResult proveOpenStages(const OpenStagesFile& open, ProofStore& store,
                                const PoolOptions& pool) {
  ProveOpenResult result;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < open.forms.size(); ++i) {
    if (store.find(open.forms[i], open.checker)) ++result.known;
    else order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return open.forms[a].size() > open.forms[b].size();
  });
  CheckOptions check;
  check.checker = open.checker;
  check.timeoutSeconds = pool.timeoutSeconds;
  check.memoryMegabytes = pool.memoryMegabytes;
  runPool(
      order,
      [&](std::size_t i) {
        const std::string& form = open.forms[i];
        const Stage stage = readCanonicalForm(form);
        if (canonicalForm(stage) != form) return std::string();
        return serialize(checkStage(stage, check));
      },
      [&](std::size_t i, const TaskResult& task) {
        const bool answered = task.outcome == TaskOutcome::kDone && !task.payload.empty();
        const StageOutcome outcome = answered ? deserialize(task.payload) : StageOutcome();
        if (!outcome.proof) {
          ++result.notProved;
          return;
        }
        const std::string& form = open.forms[i];
        store.remember(form, open.checker, readCanonicalForm(form), *outcome.proof,
                       outcome.reducedShapes);
        ++result.proved;
      },
      pool);
  store.flush();
  return result;
}

}  // namespace shardproof
