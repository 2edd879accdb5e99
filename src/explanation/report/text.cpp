// SPDX-License-Identifier: Apache-2.0
#include "report/text.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <utility>

#include "report/format.h"
#include "report/ledger.h"
#include "report/parameter_text.h"
#include "report/text_findings.h"
#include "report/totals.h"
#include "shardproof/error.h"

namespace shardproof {
namespace {

constexpr std::size_t kMaxReasons = 10;
constexpr std::size_t kMaxRankRanges = 8;

void writeVerdict(std::ostream& out, const Report& report, const TextStyle& style) {
  const std::string plan = asName(report.plan, style), model = asName(report.model, style);
  const std::string proved =
      grouped(report.outputsProved) + " of " + counted(report.outputs, "output", "outputs") +
      " proved" +
      (report.approved.empty()
           ? ""
           : ", " + counted(report.approved.size(), "approved difference", "approved differences"));
  switch (report.verdict) {
    case Verdict::kEquivalent:
      out << label("EQUIVALENT:", Tone::kGood) << " plan " << plan << " computes what model "
          << model << " computes, for every input (" << proved << ")";
      break;
    case Verdict::kNotEquivalent:
      out << label("NOT EQUIVALENT:", Tone::kBad) << " plan " << plan
          << " does not compute what model " << model << " computes ("
          << counted(report.defects.size(), "defect", "defects") << ", " << proved << ")";
      break;
    case Verdict::kUndecided:
      out << label("UNDECIDED:", Tone::kOpen) << " whether plan " << plan << " computes what model "
          << model << " computes could not be settled (" << proved << ")";
      if (!report.reason.empty()) out << ": " << asLine(report.reason, style);
      break;
    case Verdict::kConditional:
      out << label("CONDITIONAL:", Tone::kOpen) << " plan " << plan << " computes what model "
          << model << " computes (" << proved << ") if: " << conditionNames(report, style)
          << "; to accept: " << acceptingOptions(report, style);
      break;
  }
  out << "\n";
}

const char* inWords(Method method) {
  switch (method) {
    case Method::kNormalForm:
      return "plan and model reduce to the same expressions";
    case Method::kPolynomial:
      return "plan and model are the same after multiplying out";
    case Method::kSolver:
      return "the solver Z3 showed that no input makes them differ";
    case Method::kNumeric:
      return "compared in floating point";
    case Method::kNone:
      return "nothing to compute";
  }
  return "";
}

void writeProof(std::ostream& out, const Report& report) {
  struct Count {
    std::size_t stages = 0;
    std::set<std::int32_t> classes;
  };
  std::map<Method, Count> byMethod;
  std::set<std::int32_t> classes;
  std::size_t proved = 0;
  for (const auto& stage : report.stages) {
    if (stage.verdict != StageVerdict::kProved) continue;
    ++proved;
    auto& count = byMethod[stage.method];
    ++count.stages;
    // A stage without a class stands for itself; negative ids keep those apart.
    const std::int32_t id = stage.classId >= 0 ? stage.classId : -static_cast<std::int32_t>(proved);
    count.classes.insert(id);
    classes.insert(id);
  }
  if (report.stages.empty()) return;
  out << "\n"
      << label("Proved:", Tone::kHead) << " " << grouped(proved) << " of "
      << counted(report.stages.size(), "stage", "stages");
  if (proved > 0) {
    out << ", by " << counted(classes.size(), "proof", "proofs");
    if (classes.size() < proved) out << " (stages that differ only in names share one)";
    if (const auto stored = report.statistics.classesFromCache; stored > 0)
      out << "; " << grouped(stored) << " of "
          << counted(report.statistics.classes, "class", "classes") << " were proved before";
  }
  out << "\n";
  std::size_t width = 0;
  for (const auto& [method, count] : byMethod)
    width = std::max(width, grouped(count.stages).size());
  for (const auto& [method, count] : byMethod) {
    const std::string number = grouped(count.stages);
    out << "  " << std::string(width - number.size(), ' ') << number << "  " << inWords(method);
    if (count.classes.size() < count.stages)
      out << " (" << counted(count.classes.size(), "proof", "proofs") << ")";
    out << "\n";
  }
}

void writeWrongLineage(std::ostream& out, const Report& report, const TextStyle& style) {
  std::vector<std::string> names;
  for (const auto& stage : report.stages) {
    if (stage.verdict == StageVerdict::kWrongLineage && !stage.inferred && !stage.guess)
      names.push_back(stage.tensor + " (/lineage/" + std::to_string(stage.entry) + ")");
  }
  if (names.empty()) return;
  out << "\n"
      << label("Wrong lineage:", Tone::kOpen) << " "
      << counted(names.size(), "cut point does", "cut points do")
      << " not hold although the outputs do; the lineage is wrong there, not the plan:\n  "
      << nameList(names, style) << "\n";
  if (!report.inference || report.inference->replaced.empty()) return;
  out << "  found instead (`shardproof infer` writes the plan with it):\n";
  const auto& replaced = report.inference->replaced;
  for (std::size_t i = 0; i < std::min(replaced.size(), style.atMost(kMaxReasons)); ++i)
    out << "  - " << asLine(replaced[i], style) << "\n";
  if (replaced.size() > style.atMost(kMaxReasons))
    out << "  and " << grouped(replaced.size() - style.atMost(kMaxReasons)) << " more\n";
}

void writeUndecided(std::ostream& out, const Report& report, const TextStyle& style) {
  std::map<std::string, std::vector<std::string>> byReason;
  std::size_t undecided = 0;
  for (const auto& stage : report.stages) {
    if (stage.verdict != StageVerdict::kUndecided) continue;
    ++undecided;
    byReason[stage.reason.empty() ? "no reason given" : stage.reason].push_back(stage.tensor);
  }
  if (undecided == 0) return;
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons(byReason.begin(),
                                                                        byReason.end());
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  out << "\n"
      << label("Undecided:", Tone::kOpen) << " " << counted(undecided, "stage", "stages") << "\n";
  for (std::size_t i = 0; i < std::min(reasons.size(), style.atMost(kMaxReasons)); ++i) {
    const auto& [reason, names] = reasons[i];
    out << "  " << grouped(names.size()) << "  " << asLine(reason, style) << ": "
        << nameList(names, style) << "\n";
  }
  if (reasons.size() > style.atMost(kMaxReasons))
    out << "  and "
        << counted(reasons.size() - style.atMost(kMaxReasons), "more reason", "more reasons")
        << "\n";
}

void writeInference(std::ostream& out, const Report& report, const TextStyle& style) {
  if (!report.inference) return;
  if (report.inference->lemmas == 0 && !report.inference->replaced.empty()) return;
  if (report.inference->lemmas > 0)
    out << "\n"
        << label("Lemmas:", Tone::kHead) << " " << grouped(report.inference->lemmas)
        << " of them are in no file: found by executing a small image of the plan, and proved as "
           "all others (--infer)"
        << (report.inference->reason.empty()
                ? ""
                : ", as far as there was time: " + asLine(report.inference->reason, style));
  else
    out << "\n"
        << label("Lemmas:", Tone::kHead)
        << " none was found: " << asLine(report.inference->reason, style);
}

void writeParameters(std::ostream& out, const Report& report, const TextStyle& style) {
  if (!report.parameters) return;
  const ParameterTable& table = *report.parameters;
  out << "\n"
      << label("Gradients of parameters:", Tone::kHead)
      << (table.rows.empty()
              ? " " + asLine(table.reason, style)
              : " as backward makes them, and what follows (from one execution of " +
                    std::string(table.ofSmallerPlan ? "a smaller plan" : "the plan") +
                    " at random inputs)")
      << "\n";
  for (const ParameterTable::Row& row : layersTogether(table.rows)) {
    out << "  " << nameList(row.parameters, style) << "\n";
    for (const ParameterTable::Axis& axis : row.axes)
      out << "    " << printable(axis.axis) << ": " << asLine(textOf(axis), style) << "\n";
  }
}

// Only where more than one was made: the others say nothing that the verdict does not.
void writeAttempts(std::ostream& out, const Report& report) {
  if (report.attempts.size() < 2) return;
  out << "\n" << label("Tried:  ", Tone::kHead);
  for (std::size_t i = 0; i < report.attempts.size(); ++i) {
    const AttemptReport& a = report.attempts[i];
    out << (i == 0 ? "" : ", then ") << a.name << " (" << seconds(a.seconds) << ": "
        << a.outputsProved << " of " << counted(report.outputs, "output", "outputs") << " proved)";
  }
}

void writeStatistics(std::ostream& out, const Statistics& statistics) {
  out << "\n"
      << label("Plan:   ", Tone::kHead) << counted(statistics.ranks, "rank", "ranks") << ", "
      << counted(statistics.microbatches, "microbatch", "microbatches") << "; "
      << counted(statistics.programNodes, "program node stands", "program nodes stand") << " for "
      << grouped(statistics.operatorInstances) << " operator instances; "
      << counted(statistics.lineageEntries, "lineage entry", "lineage entries") << "\n";
  out << label("Time:   ", Tone::kHead) << seconds(statistics.secondsTotal);
  std::vector<std::pair<std::string, double>> phases(statistics.secondsByPhase.begin(),
                                                     statistics.secondsByPhase.end());
  std::stable_sort(phases.begin(), phases.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string list;
  for (const auto& [phase, time] : phases) {
    if (time >= 0.005) list += (list.empty() ? "" : ", ") + printable(phase) + " " + seconds(time);
  }
  if (!list.empty()) out << " (" << list << ")";
  out << "\n"
      << label("Memory: ", Tone::kHead) << megabytes(statistics.peakMemoryBytes) << " at most\n";
  if (statistics.workersLost > 0) {
    out << label("Lost:   ", Tone::kOpen)
        << counted(statistics.workersLost, "worker process", "worker processes")
        << " crashed or overran the limits\n";
  }
}

void writeWarnings(std::ostream& out, const std::vector<std::string>& warnings,
                   const TextStyle& style) {
  for (const std::string& warning : warnings)
    out << label("Warning:", Tone::kOpen) << " " << asLine(warning, style) << "\n";
}

void writeDetails(std::ostream& out, const Report& report, const TextStyle& style) {
  writeApproved(out, report, style);
  if (report.interrupted) out << "Interrupted: this report holds what was done until then.\n";
  // before causes: one may be that an input is any number
  writeWarnings(out, report.warnings, style);
  writeCauses(out, report, style);
  writeDefects(out, report, style);
  writeSuspects(out, report, style);
  writeLedger(out, report, style);
  writeProof(out, report);
  writeWrongLineage(out, report, style);
  writeUndecided(out, report, style);
  writeParameters(out, report, style);
  writeInference(out, report, style);
  writeAttempts(out, report);
  writeStatistics(out, report.statistics);
  if (report.confirmation)
    out << label("Run:    ", Tone::kHead) << asLine(report.confirmation->text, style) << "\n";
}

}  // namespace

std::string formatRanks(std::vector<std::int64_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text;
  std::size_t pieces = 0, i = 0;
  while (i < ranks.size()) {
    if (pieces == kMaxRankRanges) return text + " and " + grouped(ranks.size() - i) + " more";
    std::size_t last = i;
    std::int64_t step = 1;
    if (i + 1 < ranks.size()) {
      step = ranks[i + 1] - ranks[i];
      while (last + 1 < ranks.size() && ranks[last + 1] - ranks[last] == step) ++last;
    }
    // Two ranks that are not neighbours are no progression yet; the second may start a range of its
    // own.
    if (step != 1 && last - i < 2) last = i;
    if (pieces++ > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text.append("-").append(std::to_string(ranks[last]));
    if (last > i && step != 1) text.append(" by ").append(std::to_string(step));
    i = last + 1;
  }
  return text;
}

namespace {

std::string detailsOf(const Report& report, const TextStyle& style) {
  std::ostringstream text;
  writeDetails(text, report, style);
  return laidOut(text.str(), style);
}

// What is wrong with an input, its file named once.
void writeInputErrors(std::ostream& out, const std::vector<InputError>& errors, bool more) {
  std::string file;
  for (const InputError& error : errors) {
    if (error.file() != file) {
      file = error.file();
      const auto count = std::count_if(errors.begin(), errors.end(),
                                       [&](const InputError& e) { return e.file() == file; });
      out << printable(file) << ": " << counted(static_cast<std::size_t>(count), "error", "errors")
          << "\n";
    }
    out << "  " << error.inFile() << "\n";
  }
  if (more) out << "  and more, which are not looked for\n";
}

}  // namespace

void writeText(std::ostream& out, const Report& report, const TextStyle& style) {
  std::ostringstream verdict;
  writeVerdict(verdict, report, style);
  out << laidOut(verdict.str(), style);
  if (!style.quiet) out << detailsOf(report, style);
}

void writeText(std::ostream& out, const Report& report, bool quiet) {
  TextStyle style;
  style.quiet = quiet;
  writeText(out, report, style);
}

std::string inputErrorText(const InputError& error, const TextStyle& style) {
  const auto* several = dynamic_cast<const InputErrors*>(&error);
  if (!several) return laidOut(error.what(), style);
  std::ostringstream text;
  writeInputErrors(text, several->all(), several->more());
  std::string lines = laidOut(text.str(), style);
  lines.pop_back();
  return lines;
}

void writeVerdictLine(std::ostream& out, const PlanResult& result, const TextStyle& style) {
  std::ostringstream line;
  if (result.report) writeVerdict(line, *result.report, style);
  else {
    line << label(result.inputError ? "INPUT ERROR:" : "ERROR:", Tone::kBad) << " "
         << printable(result.error);
    if (const std::size_t more = result.errors.size(); more > 1)
      line << " (and " << counted(more - 1, "more error", "more errors") << ")";
    line << "\n";
  }
  out << laidOut(line.str(), style);
}

void writeSummary(std::ostream& out, const std::vector<PlanResult>& results,
                  const TextStyle& style) {
  Totals totals;
  std::ostringstream text;
  for (const PlanResult& result : results) {
    totals.add(result);
    const bool right = result.report && result.report->verdict == Verdict::kEquivalent;
    if (style.quiet || right || (!result.report && result.errors.size() < 2)) continue;
    text << "\n" << label("== " + printable(result.plan), Tone::kHead) << "\n";
    if (result.report) writeDetails(text, *result.report, style);
    else writeInputErrors(text, result.errors, result.moreErrors);
  }
  if (!style.quiet) text << "\n";
  text << label("Plans:  ", Tone::kHead) << grouped(results.size()) << ": "
       << grouped(totals.equivalent) << " equivalent, ";
  if (totals.conditional > 0) text << grouped(totals.conditional) << " conditional, ";
  text << grouped(totals.notEquivalent) << " not equivalent, " << grouped(totals.undecided)
       << " undecided";
  if (totals.errors > 0) text << ", " << counted(totals.errors, "error", "errors");
  text << "; " << counted(totals.classes, "class", "classes") << ", of which "
       << grouped(totals.classesFromCache) << " were proved before; " << seconds(totals.seconds)
       << "\n";
  out << laidOut(text.str(), style);
}

}  // namespace shardproof
