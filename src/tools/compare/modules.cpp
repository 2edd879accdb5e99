// SPDX-License-Identifier: Apache-2.0
#include "compare/modules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>

namespace shardproof::compare {
namespace {

// Code whose beginnings and ends are compared. What is no module has a name with a blank.
constexpr char kModel[] = "the model itself, or the step around it";
constexpr char kClipping[] = "clipping of gradients";
constexpr char kAllGradients[] = "the loss, or the reduction of gradients";
constexpr char kOptimizer[] = "the optimizer";
// Factors of gradients that are one number: a loss's scale moves each by exactly as much.
constexpr double kSameRatio = 0.01;

struct Beginning {
  std::int64_t order = 0;
  bool isKnown = false;  // the reference's numbers
};
struct End {
  std::int64_t order = 0;
  std::string text;
  bool decides = false;
};
struct Code {
  std::vector<Beginning> beginnings;
  std::vector<End> ends;  // those that differ
  bool isCompared = false;
};

bool differs(const TensorReport& report) {
  return report.status == Status::kDiffers || report.status == Status::kUnplaced ||
         (report.status == Status::kMissing && report.decides);
}

// Whether the code after it continued with the reference's numbers.
bool isReference(const TensorReport& report) {
  return report.replaced == Replaced::kDeclared || report.replaced == Replaced::kByNumbers ||
         report.status == Status::kAgrees;
}

class Modules {
 public:
  Modules(const std::vector<TensorReport>& reports, const Trace& candidate) : reports_(reports) {
    std::set<std::string> here;
    for (const auto& [name, tensor] : candidate.tensors)
      if (!tensor.module.empty()) here.insert(tensor.module);
    // What one side does not have is code of the module around it.
    std::set<std::string> names;
    for (const TensorReport& report : reports) {
      names.insert(report.base);
      if (!report.module.empty()) ofReference_.insert(report.module);
      if (here.contains(report.module)) modules_.insert(report.module);
    }
    for (const auto& [name, tensor] : candidate.tensors)
      if (!names.contains(name) && modules_.contains(tensor.module) && tensor.kind == Kind::kInput)
        beginning(tensor.module, {tensor.order, false});
  }

  ModuleFindings run() {
    oneFactor();
    for (const TensorReport& report : reports_) add(report);
    for (auto& [name, code] : code_) conclude(name, code);
    const auto order = [&](const ModuleFinding& a, const ModuleFinding& b) {
      return first_[a.module] < first_[b.module];
    };
    for (auto* list : {&found_.wrong, &found_.suspected, &found_.notJudged})
      std::stable_sort(list->begin(), list->end(), order);
    return std::move(found_);
  }

 private:
  // The module of a parameter or a buffer; one that the candidate has not, where that is missing.
  std::string moduleOf(const std::string& name, Status status) const {
    return around(name, false, status == Status::kMissing ? ofReference_ : modules_);
  }
  std::string aroundModule(const std::string& name) const { return around(name, true, modules_); }

  // The innermost module that a name begins with; `isModule`: the module itself does not count.
  static std::string around(const std::string& name, bool isModule,
                            const std::set<std::string>& modules) {
    for (std::size_t end = isModule ? name.rfind('.') : name.size(); end != std::string::npos;
         end = end == 0 ? std::string::npos : name.rfind('.', end - 1))
      if (modules.contains(name.substr(0, end))) return name.substr(0, end);
    return kModel;
  }

  void beginning(const std::string& name, Beginning beginning) {
    code_[name].beginnings.push_back(beginning);
  }

  // `decides`: what differs shows a mistake, if the report decides.
  void end(const std::string& name, const TensorReport& report, bool decides = true) {
    Code& code = code_[name];
    code.isCompared |= report.status == Status::kAgrees;
    if (!differs(report)) return;
    std::string text = report.name + " (" + toString(report.kind) + ")";
    code.ends.push_back({report.order, std::move(text), decides && report.decides});
  }

  static bool isGradientOfParameter(const TensorReport& report) {
    return report.kind == Kind::kGradient || report.kind == Kind::kUnclipped;
  }

  bool hasRatio(const TensorReport& report) const {
    return ratio_ && isGradientOfParameter(report) && report.ratio &&
           std::abs(*report.ratio - *ratio_) <= kSameRatio * std::abs(*ratio_ - 1);
  }

  // Most gradients may have one factor: of the loss, of a reduction, or of a norm to which they are
  // clipped. That is no module's mistake; the others are.
  void oneFactor() {
    std::size_t all = 0, most = 0;
    const TensorReport* example = nullptr;
    for (const TensorReport& report : reports_) {
      all += isGradientOfParameter(report) && report.status != Status::kMissing;
      if (!isGradientOfParameter(report) || !report.ratio) continue;
      ratio_ = report.ratio;
      const auto same = static_cast<std::size_t>(
          std::count_if(reports_.begin(), reports_.end(),
                        [&](const TensorReport& other) { return hasRatio(other); }));
      if (same <= most) continue;
      most = same;
      example = &report;
    }
    ratio_.reset();
    // Three do not have one factor by chance.
    if (example == nullptr || most < 2 || (most < 3 && 2 * most < all)) return;
    ratio_ = example->ratio;
    first_[kAllGradients] = std::numeric_limits<std::int64_t>::max();
    // Gradients depend on all that modules took and returned.
    const bool isKnown =
        std::all_of(reports_.begin(), reports_.end(), [&](const TensorReport& report) {
          return report.module.empty() || report.status == Status::kMissing || isReference(report);
        });
    (isKnown ? found_.wrong : found_.notJudged)
        .push_back({kAllGradients,
                    {example->name + " (" + example->message + ") and " + std::to_string(most - 1) +
                     " other gradients by the same factor"}});
  }

  void add(const TensorReport& report) {
    const bool isKnown = isReference(report);
    const auto parameter = [&] { return parameterOf(report.base); };
    switch (report.kind) {
      case Kind::kBatch:
        beginning(kModel, {report.order, isKnown});
        break;
      case Kind::kInput:
      case Kind::kOutputGradient:
        if (!modules_.contains(report.module)) break;
        end(aroundModule(report.module), report);
        if (report.status != Status::kMissing) beginning(report.module, {report.order, isKnown});
        break;
      case Kind::kOutput:
      case Kind::kInputGradient:
        if (!modules_.contains(report.module)) break;
        end(report.module, report);
        if (report.status != Status::kMissing)
          beginning(aroundModule(report.module), {report.order, isKnown});
        break;
      case Kind::kInitial:
        if (differs(report)) {
          end("numbers before the step", report);
          beginning(moduleOf(report.base, report.status), {report.order, false});
        }
        break;
      case Kind::kResult:
        // It may be a number of the gradients, as their norm.
        end(kModel, report, !anyOff(Kind::kGradient) && !anyOff(Kind::kUnclipped));
        break;
      case Kind::kUnclipped:
        if (report.status == Status::kMissing) break;
        unclipped_.insert(parameter());
        if (!hasRatio(report)) end(moduleOf(parameter(), report.status), report);
        break;
      case Kind::kGradient:
        if (hasRatio(report)) break;
        if (!unclipped_.contains(parameter())) end(moduleOf(parameter(), report.status), report);
        else if (!anyOff(Kind::kUnclipped)) end(kClipping, report);
        break;
      case Kind::kBuffer:
        if (report.decides) end(moduleOf(report.base, report.status), report);
        break;
      case Kind::kState:
      case Kind::kParameter:
      case Kind::kOptimizer:
      case Kind::kMainGradient:
      case Kind::kMainCopy:
        if (anyOff(Kind::kGradient)) break;  // follows from it
        end(kOptimizer, report);
        break;
    }
  }

  // Of "w.grad" and "w.grad before clipping".
  static std::string parameterOf(const std::string& name) {
    const std::size_t at = name.rfind(".grad");
    return at == std::string::npos ? name : name.substr(0, at);
  }

  bool anyOff(Kind kind) const {
    return std::any_of(reports_.begin(), reports_.end(), [&](const TensorReport& report) {
      return report.kind == kind && report.decides && differs(report);
    });
  }

  void conclude(const std::string& name, const Code& code) {
    ModuleFinding wrong{name, {}}, suspected{name, {}}, notJudged{name, {}};
    for (const End& end : code.ends) {
      const bool isKnown = std::all_of(code.beginnings.begin(), code.beginnings.end(),
                                       [&](const Beginning& beginning) {
                                         return beginning.isKnown || beginning.order >= end.order;
                                       });
      ModuleFinding& finding = !isKnown ? notJudged : end.decides ? wrong : suspected;
      finding.tensors.push_back(end.text);
    }
    if (!code.ends.empty()) first_[name] = code.ends.front().order;
    if (!wrong.tensors.empty()) {
      wrong.tensors.insert(wrong.tensors.end(), suspected.tensors.begin(), suspected.tensors.end());
      found_.wrong.push_back(std::move(wrong));
    } else if (!suspected.tensors.empty()) {
      found_.suspected.push_back(std::move(suspected));
    } else if (!notJudged.tensors.empty()) {
      found_.notJudged.push_back(std::move(notJudged));
    } else if (code.isCompared) {
      ++found_.right;
    }
  }

  const std::vector<TensorReport>& reports_;
  std::set<std::string> modules_;      // of both sides
  std::set<std::string> ofReference_;  // of the reference
  std::map<std::string, Code> code_;
  std::map<std::string, std::int64_t> first_;  // the order of the first end that differs
  std::set<std::string> unclipped_;  // parameters whose gradients before clipping are compared
  std::optional<double> ratio_;      // that most gradients have to the reference's
  ModuleFindings found_;
};

}  // namespace

ModuleFindings judgeModules(const std::vector<TensorReport>& reports, const Trace& candidate) {
  return Modules(reports, candidate).run();
}

}  // namespace shardproof::compare
