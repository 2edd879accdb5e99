// SPDX-License-Identifier: Apache-2.0
#include "compare/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <sstream>

#include "report/format.h"
#include "report/xml_text.h"
#include "util/printable.h"

namespace shardproof::compare {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kListed = 10;  // of one list, unless all are wanted
// Tensors of one kind have the same factor when their factors differ by no more than this share.
constexpr double kSameFactor = 0.01;

const char* verdictText(Agreement verdict) {
  return verdict == Agreement::kAgrees    ? "agrees"
         : verdict == Agreement::kDiffers ? "differs"
                                          : "undecided";
}

bool isOff(const TensorReport& report) {
  return report.decides && (report.status == Status::kDiffers || report.status == Status::kMissing);
}

const TensorReport* firstOff(const Comparison& comparison) {
  for (const TensorReport& report : comparison.tensors)
    if (isOff(report)) return &report;
  return nullptr;
}

std::string named(const TensorReport& report) {
  return printable(report.name, 200) + " (" + toString(report.kind) + ")";
}

std::string errorText(const TensorReport& report) {
  if (report.status == Status::kMissing) return report.message;
  std::string text;
  if (report.error != 0 || report.message.empty()) {
    text = "error " + shareText(report.error) + ", tolerance " + shareText(report.tolerance);
    if (report.tolerance > 0 && report.error > report.tolerance)
      text += ", " + shareText(report.error / report.tolerance) + " times as much";
  }
  if (!report.message.empty()) text += (text.empty() ? "" : "; ") + report.message;
  if (!report.layout.empty())
    text += (report.status == Status::kAgrees ? " (layout found by numbers: " : " (nearest: ") +
            report.layout + ")";
  return text;
}

void writeReplicas(std::ostream& out, const TensorReport& report, std::size_t most) {
  for (std::size_t i = 0; i < report.replicas.size(); ++i) {
    if (i == most) {
      out << "      and " << report.replicas.size() - most << " more pairs of ranks\n";
      break;
    }
    const ReplicaFinding& replica = report.replicas[i];
    out << "      rank " << replica.rank << " has other numbers than rank " << replica.first << ": "
        << shareText(replica.error) << " of the norm\n";
  }
}

template <class Wanted>
void writeList(std::ostream& out, const Comparison& comparison, const std::string& title, Tone tone,
               const TextStyle& style, const Wanted& wanted) {
  const auto& all = comparison.tensors;
  const auto count = static_cast<std::size_t>(std::count_if(all.begin(), all.end(), wanted));
  if (count == 0) return;
  out << "\n"
      << label(title + ":", tone) << " " << counted(count, "tensor", "tensors")
      << ", in the order of the computation\n";
  std::size_t listed = 0;
  for (const TensorReport& report : all) {
    if (!wanted(report)) continue;
    if (listed++ == style.atMost(kListed)) {
      out << "    and " << count - style.atMost(kListed) << " more (-v)\n";
      break;
    }
    out << "    " << named(report) << ": " << printable(errorText(report), 500) << "\n";
    writeReplicas(out, report, style.atMost(4));
  }
}

// Where several tensors of one kind are the same multiple of the reference's, that is the mistake.
void writeFactors(std::ostream& out, const Comparison& comparison) {
  std::map<Kind, std::vector<const TensorReport*>> offByKind;
  for (const TensorReport& report : comparison.tensors)
    if (isOff(report)) offByKind[report.kind].push_back(&report);
  for (const auto& [kind, off] : offByKind) {
    std::vector<double> factors;
    for (const TensorReport* report : off)
      if (report->ratio) factors.push_back(*report->ratio);
    if (factors.empty()) continue;
    std::sort(factors.begin(), factors.end());
    const double factor = factors[factors.size() / 2];
    const auto same = std::count_if(factors.begin(), factors.end(), [&](double f) {
      return std::abs(f - factor) <= kSameFactor * std::abs(factor);
    });
    if (same < 2) continue;
    std::ostringstream number;
    number.precision(4);
    number << factor;
    out << label("Same factor:", Tone::kBad) << " " << same << " of "
        << counted(off.size(), "different tensor", "different tensors") << " of kind "
        << toString(kind) << " are " << number.str() << " times the reference's\n";
  }
}

// How much agreement shows: tolerances of what the step computes.
std::string tolerancesText(const Comparison& comparison) {
  std::vector<double> tolerances;
  std::size_t zero = 0;
  for (const TensorReport& report : comparison.tensors) {
    if (!report.decides || report.status != Status::kAgrees || !isFloat(report.dtype) ||
        report.kind == Kind::kBatch || report.kind == Kind::kInitial ||
        report.kind == Kind::kOptimizer)
      continue;
    if (report.tolerance > comparison.options.bound) ++zero;
    else tolerances.push_back(report.tolerance);
  }
  if (tolerances.empty()) return "";
  std::sort(tolerances.begin(), tolerances.end());
  std::string text = ", each within its own tolerance: median " +
                     shareText(tolerances[tolerances.size() / 2]) + " of the norm, largest " +
                     shareText(tolerances.back());
  if (zero > 0)
    text += "; " + counted(zero, "other tensor is", "others are") + " zero but for rounding";
  return text;
}

std::string modulesText(const ModuleFindings& modules) {
  for (const auto& [list, title] :
       {std::pair(&modules.wrong, "wrong by itself"), std::pair(&modules.suspected, "suspected")}) {
    if (list->empty()) continue;
    std::string text = (list == &modules.wrong ? "" : "; ") + std::string(title) + ": " +
                       printable(list->front().module, 200);
    if (list->size() > 1) text += " and " + std::to_string(list->size() - 1) + " more";
    return text;
  }
  return "";
}

void writeModules(std::ostream& out, const ModuleFindings& modules, const TextStyle& style) {
  const auto write = [&](const std::vector<ModuleFinding>& list, const char* title, Tone tone) {
    if (list.empty()) return;
    out << "\n" << label(title, tone) << "\n";
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i == style.atMost(kListed)) {
        out << "    and " << list.size() - i << " more (-v)\n";
        break;
      }
      out << "    " << printable(list[i].module, 200) << ":";
      for (std::size_t t = 0; t < list[i].tensors.size(); ++t) {
        if (t == style.atMost(4)) {
          out << ", and " << list[i].tensors.size() - t << " more";
          break;
        }
        out << (t > 0 ? ", " : " ") << printable(list[i].tensors[t], 200);
      }
      out << "\n";
    }
  };
  write(modules.wrong, "Wrong by themselves: all that they begin with is the reference's",
        Tone::kBad);
  write(modules.suspected, "Suspected: what they return fits no layout, or they are wrong",
        Tone::kAdvice);
  write(modules.notJudged,
        "Not judged: not all that they begin with is known to be the reference's", Tone::kOpen);
  out << label("Modules:", Tone::kLabel) << " " << modules.right << " right by themselves\n";
}

void writeVerdict(std::ostream& out, const Comparison& comparison) {
  const std::string candidate = printable(comparison.candidate),
                    reference = printable(comparison.reference);
  const std::size_t agreed = comparison.count(Status::kAgrees, true),
                    off = comparison.count(Status::kDiffers, true) +
                          comparison.count(Status::kMissing, true);
  if (comparison.modules) {
    const bool isWrong = comparison.verdict == Agreement::kDiffers;
    out << label(isWrong ? "DIFFERS:" : "UNDECIDED:", isWrong ? Tone::kBad : Tone::kOpen) << " "
        << candidate << " took the numbers of " << reference
        << ", so that each module is compared by itself; "
        << (isWrong ? "" : "none is certain to be wrong") << modulesText(*comparison.modules)
        << "\n";
  } else if (comparison.verdict == Agreement::kAgrees) {
    out << label("AGREES:", Tone::kGood) << " " << candidate << " has the numbers of " << reference
        << ", but for rounding (" << counted(agreed, "tensor", "tensors") << " compared"
        << tolerancesText(comparison) << ")\n";
  } else if (comparison.verdict == Agreement::kDiffers) {
    out << label("DIFFERS:", Tone::kBad) << " " << candidate << " has other numbers than "
        << reference << ", beyond rounding (" << off << " of "
        << counted(off + agreed + comparison.count(Status::kUncertain, true), "tensor", "tensors")
        << "); first: " << named(*firstOff(comparison)) << "\n";
  } else {
    out << label("UNDECIDED:", Tone::kOpen) << " no difference between " << candidate << " and "
        << reference << " was found, but that shows little: " << comparison.reason << "\n";
  }
}

// What a verdict on the plan and these numbers mean together (docs/numbers.md).
std::string meaningOf(const Comparison& comparison) {
  const bool isProved = comparison.proof == "equivalent" || comparison.proof == "conditional";
  if (!isProved && comparison.proof != "not-equivalent")
    return "the plan is not decided, so the numbers stand alone";
  if (comparison.verdict == Agreement::kUndecided)
    return "the numbers do not decide, so the verdict on the plan stands alone";
  const bool differs = comparison.verdict == Agreement::kDiffers;
  if (!isProved)
    return differs ? "the causes are in this report"
                   : "the mistake is smaller than rounding with these inputs: compare in fp32";
  if (!differs) return "nothing was found";
  const std::string condition =
      comparison.proof == "conditional" ? ", or a condition of the verdict does not hold" : "";
  const std::string place = comparison.modules && !comparison.modules->wrong.empty()
                                ? printable(comparison.modules->wrong.front().module, 200)
                                : named(*firstOff(comparison));
  return "the plan is right, and what runs is not: look at kernels, precision and races at " +
         place + "; or the recorder is wrong" + condition;
}

void writeGrowth(std::ostream& out, const Comparison& comparison, const TextStyle& style) {
  if (comparison.growth.empty()) return;
  out << "\n"
      << label("Growth of the error over layers", Tone::kHead)
      << " (medians, in machine epsilons of the tensor's dtype)\n";
  const auto cell = [](const std::optional<double>& value) {
    if (!value) return alignedRight("-", 11);
    std::ostringstream text;
    text.precision(3);
    text << *value;
    return alignedRight(text.str(), 11);
  };
  std::size_t width = 5;
  for (const Growth& row : comparison.growth)
    width = std::max(width, columns(printable(row.layer, 60)));
  out << "    " << padded("", width) << "   outputs              gradients of parameters\n"
      << "    " << padded("layer", width) << "  perturbed  candidate  perturbed  candidate\n";
  const std::size_t most = style.atMost(24);
  for (std::size_t i = 0; i < comparison.growth.size(); ++i) {
    if (comparison.growth.size() > most && i == most / 2) {
      const std::size_t left = comparison.growth.size() - most;
      out << "    ... " << left << " layers (-v)\n";
      i += left;
    }
    const Growth& row = comparison.growth[i];
    out << "    " << padded(printable(row.layer, 60), width) << cell(row.forwardPerturbed)
        << cell(row.forward) << cell(row.backwardPerturbed) << cell(row.backward) << "\n";
  }
}

OrderedJson placedJson(const Placed& placed, const std::vector<Axis>& mesh) {
  OrderedJson json;
  json["by"] = placed.by == Replaced::kDeclared    ? "declared"
               : placed.by == Replaced::kByNumbers ? "numbers"
                                                   : "shape";
  json["choices"] = OrderedJson::array();
  for (const Choice& choice : placed.choices) {
    const char* along = choice.along == Along::kEqual ? "equal"
                        : choice.along == Along::kCut ? "cut"
                        : choice.along == Along::kSum ? "sum"
                                                      : "mean";
    json["choices"].push_back(
        {choice.axis < mesh.size() ? mesh[choice.axis].name : "calls", along, choice.dimension});
  }
  json["scale"] = placed.scale;
  json["calls"] = placed.calls;
  return json;
}

}  // namespace

std::string shareText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return "infinite";
  std::ostringstream text;
  text.precision(2);
  text << std::scientific << value;
  return text.str();
}

void writeText(std::ostream& out, const Comparison& comparison, const TextStyle& style) {
  writeVerdict(out, comparison);
  if (style.quiet) return;
  if (!comparison.proof.empty())
    out << label("With the proof:", Tone::kLabel) << " " << printable(comparison.proofFile, 200)
        << " is " << printable(comparison.proof, 40) << "; " << meaningOf(comparison) << "\n";
  if (comparison.modules) writeModules(out, *comparison.modules, style);
  if (firstOff(comparison) != nullptr) {
    if (!comparison.modules) writeFactors(out, comparison);
    writeList(out, comparison, "Different", Tone::kBad, style, isOff);
    const std::int64_t first = firstOff(comparison)->order;
    writeList(out, comparison, "Tensors of modules before it that fit no layout", Tone::kAdvice,
              style, [&](const TensorReport& report) {
                return report.status == Status::kUnplaced && report.order < first;
              });
  }
  writeList(out, comparison, "Shows nothing", Tone::kOpen, style, [](const TensorReport& report) {
    return report.decides &&
           (report.status == Status::kUncertain || report.status == Status::kNotCompared);
  });
  writeGrowth(out, comparison, style);

  std::size_t within = 0;
  for (const TensorReport& report : comparison.tensors) within += report.replicasWithin > 0;
  out << "\n"
      << label("Compared:", Tone::kLabel) << " "
      << counted(comparison.count(Status::kAgrees, true) + comparison.count(Status::kDiffers, true),
                 "tensor", "tensors")
      << " of declared layout; "
      << counted(comparison.count(Status::kAgrees, false), "tensor", "tensors")
      << " of modules with a layout that was found by numbers\n";
  const std::size_t unplaced = comparison.count(Status::kUnplaced, false),
                    left = comparison.count(Status::kNotCompared, false) +
                           comparison.count(Status::kMissing, false) +
                           comparison.count(Status::kUncertain, false);
  if (unplaced > 0)
    out << label("No layout:", Tone::kLabel) << " " << counted(unplaced, "tensor", "tensors")
        << " of modules fit no layout; they decide nothing\n";
  if (left > 0)
    out << label("Not compared:", Tone::kLabel) << " "
        << counted(left, "other tensor", "other tensors") << "\n";
  if (style.verbose)
    writeList(out, comparison, "Left out", Tone::kLabel, style, [](const TensorReport& report) {
      return !report.decides && report.status != Status::kAgrees;
    });
  if (within > 0)
    out << label("Replicas:", Tone::kLabel) << " " << counted(within, "tensor", "tensors")
        << " of which ranks have copies that differ, within the tolerance\n";
  for (const std::string& note : comparison.notes)
    out << label("Note:", Tone::kLabel) << " " << printable(note, 500) << "\n";
  out << label("Tolerance:", Tone::kLabel) << " " << shareText(comparison.options.factor)
      << " times the largest error of "
      << counted(comparison.draws, "perturbed reference", "perturbed references")
      << ", each tensor its own\n";
}

std::string jsonText(const Comparison& comparison, int exitCode) {
  OrderedJson json;
  json["format"] = "shardproof-comparison";
  json["version"] = 1;
  json["verdict"] = verdictText(comparison.verdict);
  json["exit_code"] = exitCode;
  if (!comparison.reason.empty()) json["reason"] = comparison.reason;
  json["reference"] = comparison.reference;
  json["candidate"] = comparison.candidate;
  json["mesh"] = OrderedJson::array();
  for (const Axis& axis : comparison.mesh) json["mesh"].push_back({axis.name, axis.size});
  json["draws"] = comparison.draws;
  json["factor"] = comparison.options.factor;
  json["bound"] = comparison.options.bound;
  json["bytes"] = comparison.bytes;
  if (const TensorReport* first = firstOff(comparison)) json["first"] = first->name;
  if (!comparison.proof.empty())
    json["proof"] = {{"report", comparison.proofFile},
                     {"verdict", comparison.proof},
                     {"meaning", meaningOf(comparison)}};
  json["tensors"] = OrderedJson::array();
  const auto finite = [](double value) {
    return std::isfinite(value) ? OrderedJson(value) : OrderedJson();
  };
  for (const TensorReport& report : comparison.tensors) {
    OrderedJson tensor;
    tensor["name"] = report.name;
    tensor["base"] = report.base;
    if (report.call) tensor["call"] = *report.call;
    tensor["kind"] = toString(report.kind);
    tensor["dtype"] = toString(report.dtype);
    tensor["shape"] = report.shape;
    tensor["status"] = toString(report.status);
    tensor["decides"] = report.decides;
    tensor["error"] = finite(report.error);  // null: not finite
    tensor["perturbed"] = finite(report.perturbed);
    tensor["tolerance"] = finite(report.tolerance);
    tensor["epsilon"] = epsilon(report.dtype);
    if (!report.layout.empty()) tensor["layout"] = report.layout;
    if (report.placed) tensor["placed"] = placedJson(*report.placed, comparison.mesh);
    if (report.ratio) tensor["ratio"] = finite(*report.ratio);
    if (!report.message.empty()) tensor["message"] = report.message;
    for (const ReplicaFinding& replica : report.replicas)
      tensor["replicas"].push_back(
          {{"first", replica.first}, {"rank", replica.rank}, {"error", finite(replica.error)}});
    json["tensors"].push_back(std::move(tensor));
  }
  if (comparison.modules) {
    OrderedJson& modules = json["modules"];
    modules["right"] = comparison.modules->right;
    const auto add = [&](const char* key, const std::vector<ModuleFinding>& list) {
      modules[key] = OrderedJson::array();
      for (const ModuleFinding& finding : list)
        modules[key].push_back({{"module", finding.module}, {"tensors", finding.tensors}});
    };
    add("wrong", comparison.modules->wrong);
    add("suspected", comparison.modules->suspected);
    add("not_judged", comparison.modules->notJudged);
  }
  json["growth"] = OrderedJson::array();
  const auto optional = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? OrderedJson(*value) : OrderedJson();
  };
  for (const Growth& row : comparison.growth)
    json["growth"].push_back({{"layer", row.layer},
                              {"forward_perturbed", optional(row.forwardPerturbed)},
                              {"forward", optional(row.forward)},
                              {"backward_perturbed", optional(row.backwardPerturbed)},
                              {"backward", optional(row.backward)}});
  json["notes"] = comparison.notes;
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string junitText(const Comparison& comparison) {
  pugi::xml_document document;
  pugi::xml_node declaration = document.append_child(pugi::node_declaration);
  declaration.append_attribute("version") = "1.0";
  declaration.append_attribute("encoding") = "UTF-8";
  pugi::xml_node suites = document.append_child("testsuites");
  pugi::xml_node suite = suites.append_child("testsuite");
  const auto set = [](pugi::xml_node node, const char* attribute, const std::string& value) {
    node.append_attribute(attribute).set_value(xmlText(value).c_str());
  };
  set(suite, "name", "shardproof compare " + comparison.candidate);
  unsigned tests = 0, failures = 0, errors = 0;
  for (const TensorReport& report : comparison.tensors) {
    if (!report.decides) continue;
    pugi::xml_node test = suite.append_child("testcase");
    set(test, "classname", "shardproof.compare");
    set(test, "name", report.name);
    set(test, "time", "0");
    ++tests;
    if (report.status == Status::kAgrees) continue;
    const bool failure = isOff(report);
    ++(failure ? failures : errors);
    pugi::xml_node child = test.append_child(failure ? "failure" : "error");
    set(child, "message", errorText(report));
    set(child, "type", toString(report.status));
  }
  if (tests == 0) {
    pugi::xml_node test = suite.append_child("testcase");
    set(test, "classname", "shardproof.compare");
    set(test, "name", "comparison");
    set(test, "time", "0");
    set(test.append_child("error"), "message", comparison.reason);
    tests = errors = 1;
  }
  for (pugi::xml_node node : {suite, suites}) {
    node.append_attribute("tests") = tests;
    node.append_attribute("failures") = failures;
    node.append_attribute("errors") = errors;
    node.append_attribute("time") = "0";
  }
  std::ostringstream text;
  document.save(text, " ", pugi::format_default, pugi::encoding_utf8);
  return text.str();
}

}  // namespace shardproof::compare
