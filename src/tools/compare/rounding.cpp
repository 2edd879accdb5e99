// SPDX-License-Identifier: Apache-2.0
#include "compare/rounding.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "compare/report.h"
#include "report/format.h"
#include "shardproof/error.h"
#include "util/printable.h"

namespace shardproof::compare {
namespace {

constexpr std::size_t kNamed = 10;  // of tensors that an error message lists

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

const ExpectedRounding& tensorNamed(const RoundingOfStep& rounding, const std::string& name) {
  const auto found =
      std::find_if(rounding.tensors.begin(), rounding.tensors.end(),
                   [&](const ExpectedRounding& tensor) { return tensor.name == name; });
  if (found != rounding.tensors.end()) return *found;
  std::string there;
  for (std::size_t i = 0; i < std::min(kNamed, rounding.tensors.size()); ++i)
    there += (i > 0 ? ", " : "") + printable(rounding.tensors[i].name, 100);
  throw InputError(rounding.reference, printable(name, 200),
                   "is no tensor of the trace, expected one of " + there +
                       (rounding.tensors.size() > kNamed ? ", ..." : ""));
}

// The loss, where a step has one of that name; else its first result.
std::string usualTensor(const RoundingOfStep& rounding) {
  const ExpectedRounding* first = nullptr;
  for (const ExpectedRounding& tensor : rounding.tensors) {
    if (tensor.kind != toString(Kind::kResult)) continue;
    if (tensor.name == "loss" || tensor.name == "loss#0") return tensor.name;
    if (first == nullptr) first = &tensor;
  }
  if (first == nullptr)
    throw InputError(rounding.reference, "",
                     "has no loss and no result, expected the name of a tensor (--tensor)");
  return first->name;
}

std::string movedText(const RoundingOfStep& rounding, const ExpectedRounding& tensor) {
  const std::string named = printable(tensor.name, 200) + " (" + tensor.kind + ", " + tensor.dtype;
  if (!tensor.moved || !tensor.tolerance)
    return named + "): how far rounding moves it is not known";
  return named + "): rounding moves it by up to " + shareText(*tensor.moved) + " of its size in " +
         counted(rounding.draws, "perturbed run", "perturbed runs") + "; up to " +
         shareText(*tensor.tolerance) + " counts as rounding";
}

std::string answer(const RoundingOfStep& rounding, const ExpectedRounding& tensor,
                   double difference) {
  const bool isCompared = !rounding.candidate.empty();
  const std::string it = "a difference of " + shareText(difference) + " is ";
  if (!tensor.tolerance || *tensor.tolerance > rounding.bound)
    return it +
           "not decided: rounding alone may move this tensor as far as a mistake would. "
           "Compare in fp32, or another tensor (--tensor)";
  if (difference > *tensor.tolerance) {
    const double factor = difference / *tensor.tolerance;
    return it + (std::isfinite(factor) ? shareText(factor) + " times that: " : "more than that: ") +
           "more than rounding. " +
           (isCompared ? "It is a mistake, or follows from an earlier difference"
                       : "It is a mistake, or the two runs begin with other numbers. Record the "
                         "other run, and `shardproof compare` names the first tensor that differs");
  }
  return it + "within that: rounding explains it";
}

}  // namespace

RoundingOfStep roundingOf(const std::string& reference, const Options& options) {
  const Comparison itself = compareTraces(reference, reference, options);
  RoundingOfStep rounding{reference, "", "", "", itself.draws, options.bound, {}};
  for (const TensorReport& report : itself.tensors)
    if (report.isCompared())
      rounding.tensors.push_back({report.name,
                                  toString(report.kind),
                                  toString(report.dtype),
                                  finite(report.perturbed),
                                  finite(report.tolerance),
                                  {}});
  return rounding;
}

RoundingOfStep roundingOf(const nlohmann::ordered_json& report, const std::string& file) {
  RoundingOfStep rounding;
  try {
    rounding.reference = report.at("reference").get<std::string>();
    rounding.candidate = report.at("candidate").get<std::string>();
    rounding.verdict = report.at("verdict").get<std::string>();
    rounding.first = report.value("first", "");
    rounding.draws = report.at("draws").get<std::size_t>();
    rounding.bound = report.at("bound").get<double>();
    for (const auto& tensor : report.at("tensors")) {
      const auto share = [&](const char* key) {
        const auto& value = tensor.at(key);
        return value.is_null() ? std::nullopt : std::optional(value.get<double>());
      };
      const auto status = tensor.at("status").get<std::string>();
      const bool isCompared = status == toString(Status::kAgrees) ||
                              status == toString(Status::kDiffers) ||
                              status == toString(Status::kUncertain);
      rounding.tensors.push_back({tensor.at("name").get<std::string>(),
                                  tensor.at("kind").get<std::string>(),
                                  tensor.at("dtype").get<std::string>(), share("perturbed"),
                                  share("tolerance"), isCompared ? share("error") : std::nullopt});
    }
  } catch (const nlohmann::ordered_json::exception& error) {
    throw InputError(file, "", std::string("found no report of compare --json: ") + error.what());
  }
  return rounding;
}

void writeRounding(std::ostream& out, const RoundingOfStep& rounding, const std::string& tensor,
                   const std::optional<double>& difference) {
  const bool isAsked = !tensor.empty() || difference;
  if (!rounding.candidate.empty())
    out << "The comparison of " << printable(rounding.candidate, 200) << " with "
        << printable(rounding.reference, 200) << " is: " << printable(rounding.verdict, 40)
        << (rounding.first.empty() ? "" : "; first " + printable(rounding.first, 200)) << ".\n\n";
  std::vector<std::pair<const ExpectedRounding*, std::optional<double>>> shown;
  if (isAsked || rounding.candidate.empty()) {
    const ExpectedRounding& found =
        tensorNamed(rounding, tensor.empty() ? usualTensor(rounding) : tensor);
    shown.emplace_back(&found, difference ? difference : found.error);
  } else {  // the first that is more than rounding
    for (const ExpectedRounding& found : rounding.tensors)
      if (shown.empty() && found.error && found.tolerance && *found.error > *found.tolerance)
        shown.emplace_back(&found, found.error);
    if (shown.empty()) {
      const ExpectedRounding& found = tensorNamed(rounding, usualTensor(rounding));
      shown.emplace_back(&found, found.error);
    }
  }
  for (const auto& [found, seen] : shown) {
    out << movedText(rounding, *found) << ".\n";
    if (seen) out << "    " << answer(rounding, *found, *seen) << ".\n";
  }
  if (!isAsked) {
    struct OfKind {
      std::vector<double> moved;
      std::string largest;
      double most = -1;
    };
    std::vector<std::string> kinds;
    std::map<std::string, OfKind> of;
    for (const ExpectedRounding& found : rounding.tensors) {
      if (!found.moved || *found.moved == 0) continue;
      if (!of.contains(found.kind)) kinds.push_back(found.kind);
      OfKind& kind = of[found.kind];
      kind.moved.push_back(*found.moved);
      if (*found.moved > kind.most) {
        kind.most = *found.moved;
        kind.largest = found.name;
      }
    }
    if (!kinds.empty())
      out << "\nHow far rounding moves tensors, as shares of their norms\n    "
          << padded("kind", 20) << alignedRight("tensors", 8) << alignedRight("median", 11)
          << alignedRight("largest", 11) << "  which is\n";
    for (const std::string& name : kinds) {
      OfKind& kind = of[name];
      std::sort(kind.moved.begin(), kind.moved.end());
      out << "    " << padded(name, 20) << alignedRight(std::to_string(kind.moved.size()), 8)
          << alignedRight(shareText(kind.moved[kind.moved.size() / 2]), 11)
          << alignedRight(shareText(kind.most), 11) << "  " << printable(kind.largest, 100) << "\n";
    }
  }
  out << "\nThis is about one step from the same numbers. From step to step differences grow.\n";
}

}  // namespace shardproof::compare
