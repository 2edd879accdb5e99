#include "report/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <ostream>
#include <set>
#include <string_view>
#include <utility>

#include "report/format.h"
#include "report/totals.h"

namespace shardproof {
namespace {

constexpr std::size_t kMaxAssignments = 12;
constexpr std::size_t kMaxNodes = 8;
constexpr std::size_t kMaxReasons = 10;
constexpr std::size_t kMaxNames = 6;
constexpr std::size_t kMaxDefects = 10, kMaxSuspects = 3, kMaxCauses = 5;
constexpr std::size_t kMaxRankRanges = 8;

// All digits that the double has: two values that differ must not look the same.
std::string exact(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::string nameList(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxNames); ++i)
    text += (i ? ", " : "") + printable(names[i]);
  if (names.size() > kMaxNames) text += " and " + grouped(names.size() - kMaxNames) + " more";
  return text;
}

void writeVerdict(std::ostream& out, const Report& report) {
  const std::string plan = printable(report.plan), model = printable(report.model);
  const std::string proved = grouped(report.outputsProved) + " of " +
                             counted(report.outputs, "output", "outputs") + " proved";
  switch (report.verdict) {
    case Verdict::kEquivalent:
      out << "EQUIVALENT: plan " << plan << " computes what model " << model
          << " says, for every input (" << proved << ")";
      break;
    case Verdict::kNotEquivalent:
      out << "NOT EQUIVALENT: plan " << plan << " does not compute what model " << model
          << " says (" << counted(report.defects.size(), "defect", "defects") << ", " << proved
          << ")";
      break;
    case Verdict::kUndecided:
      out << "UNDECIDED: whether plan " << plan << " computes what model " << model
          << " says could not be settled (" << proved << ")";
      if (!report.reason.empty()) out << ": " << printable(report.reason);
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
  out << "\nProved: " << grouped(proved) << " of "
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

void writeWrongLineage(std::ostream& out, const Report& report) {
  std::vector<std::string> names;
  for (const auto& stage : report.stages) {
    if (stage.verdict == StageVerdict::kWrongLineage && !stage.inferred)
      names.push_back(stage.tensor + " (/lineage/" + std::to_string(stage.entry) + ")");
  }
  if (names.empty()) return;
  out << "\nWrong lineage: " << counted(names.size(), "checkpoint does", "checkpoints do")
      << " not hold although the outputs do; the lineage is wrong there, not the plan:\n  "
      << nameList(names) << "\n";
}

void writeUndecided(std::ostream& out, const Report& report) {
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
  out << "\nUndecided: " << counted(undecided, "stage", "stages") << "\n";
  for (std::size_t i = 0; i < std::min(reasons.size(), kMaxReasons); ++i) {
    const auto& [reason, names] = reasons[i];
    out << "  " << grouped(names.size()) << "  " << printable(reason) << ": " << nameList(names)
        << "\n";
  }
  if (reasons.size() > kMaxReasons)
    out << "  and " << counted(reasons.size() - kMaxReasons, "more reason", "more reasons") << "\n";
}

void writeNodes(std::ostream& out, const std::vector<NodePlace>& nodes, const std::string& label,
                const std::string& indent) {
  const std::size_t shown = std::min(nodes.size(), kMaxNodes);
  std::size_t place = 0, op = 0;
  for (std::size_t i = 0; i < shown; ++i) {
    place = std::max(place, columns(printable(nodes[i].pointer)));
    op = std::max(op, columns(printable(nodes[i].op)));
  }
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& node = nodes[i];
    out << (i == 0 ? label : indent) << (node.inPlan ? "plan   " : "model  ")
        << padded(printable(node.pointer), place) << "  ";
    if (node.location.empty()) out << printable(node.op);
    else out << padded(printable(node.op), op) << "  " << printable(node.location);
    out << "\n";
  }
  if (nodes.size() > shown) out << indent << "and " << grouped(nodes.size() - shown) << " more\n";
}

void writeCounterexample(std::ostream& out, const Counterexample& example) {
  out << "  differs at:  " << printable(example.element) << " is " << exact(example.logical)
      << " in the model, " << exact(example.parallel) << " in the plan\n";
  const std::size_t shown = std::min(example.assignment.size(), kMaxAssignments);
  if (shown == 0) return;
  out << "  when:        "
      << (example.endToEnd ? "(values of the plan's own inputs)"
                           : "(values of the tensors that this stage starts from)")
      << "\n";
  std::size_t element = 0;
  for (std::size_t i = 0; i < shown; ++i) {
    element = std::max(element, columns(printable(example.assignment[i].element)));
  }
  for (std::size_t i = 0; i < shown; ++i) {
    const std::string text = exact(example.assignment[i].value);
    out << "    " << padded(printable(example.assignment[i].element), element) << " = "
        << (text.front() == '-' ? "" : " ") << text << "\n";
  }
  const std::size_t more = example.assignment.size() - shown + example.omitted;
  if (more > 0) out << "    and " << grouped(more) << " more\n";
}

void writeDefect(std::ostream& out, const Defect& defect) {
  const std::string indent(15, ' ');
  if (!defect.lineage.empty()) out << "  claim:       " << printable(defect.lineage) << "\n";
  else if (!defect.tensor.empty()) out << "  tensor:      " << printable(defect.tensor) << "\n";
  if (!defect.ranks.empty())
    out << (defect.ranks.size() == 1 ? "  rank:        " : "  ranks:       ")
        << formatRanks(defect.ranks) << "\n";
  if (defect.microbatch) out << "  microbatch:  " << *defect.microbatch << "\n";
  writeNodes(out, defect.nodes, "  look at:     ", indent);
  if (defect.counterexample) writeCounterexample(out, *defect.counterexample);
}

// "norm.weight, y in 9 places": where a cause shows.
void writeCause(std::ostream& out, const Cause& cause) {
  if (cause.mend) {
    out << (cause.mend->proved ? "  equivalent if: " : "  mend:        ")
        << printable(cause.mend->text);
    out << (cause.mend->proved ? "" : " (not proved: what fails here agrees then at random inputs)")
        << "\n";
  }
  if (!cause.tensors.empty()) {
    out << "  shows in:    " << nameList(cause.tensors);
    if (cause.defects.size() > 1) out << " (" << grouped(cause.defects.size()) << " places)";
    out << "\n";
  }
  if (!cause.ranks.empty())
    out << (cause.ranks.size() == 1 ? "  rank:        " : "  ranks:       ")
        << formatRanks(cause.ranks) << "\n";
  if (!cause.microbatches.empty())
    out << (cause.microbatches.size() == 1 ? "  microbatch:  " : "  microbatches: ")
        << formatRanks(cause.microbatches) << "\n";
  writeNodes(out, cause.nodes, "  look at:     ", std::string(15, ' '));
}

void writeCauses(std::ostream& out, const Report& report) {
  for (std::size_t i = 0; i < std::min(report.causes.size(), kMaxCauses); ++i) {
    // Of an undecided plan whether it is one of a wrong output is what was not settled.
    out << (report.verdict == Verdict::kNotEquivalent ? "\nCause " : "\nSuspected cause ") << i + 1
        << " of " << report.causes.size() << ": " << printable(report.causes[i].sentence) << "\n";
    writeCause(out, report.causes[i]);
  }
  if (report.causes.size() > kMaxCauses)
    out << "\nand " << counted(report.causes.size() - kMaxCauses, "more cause", "more causes")
        << " (the JSON report has them)\n";
}

// The defects that are not told as one of a cause's other places.
std::vector<char> shownDefects(const Report& report, std::size_t count) {
  std::vector<char> shown(count, 1);
  for (const Cause& cause : report.causes)
    for (std::size_t i = 1; i < cause.defects.size(); ++i)
      if (cause.defects[i] < count) shown[cause.defects[i]] = 0;
  return shown;
}

void writeDefects(std::ostream& out, const Report& report) {
  const std::vector<char> wanted = shownDefects(report, report.defects.size());
  for (std::size_t i = 0; i < std::min(report.defects.size(), kMaxDefects); ++i) {
    if (!wanted[i]) continue;
    const Defect& defect = report.defects[i];
    out << "\nDefect " << i + 1 << " of " << report.defects.size() << " (" << toString(defect.kind)
        << "): " << printable(defect.message) << "\n";
    writeDefect(out, defect);
  }
  if (report.defects.size() > kMaxDefects) {
    out << "\nand " << counted(report.defects.size() - kMaxDefects, "more defect", "more defects")
        << " (the JSON report has all)\n";
  }
}

void writeSuspects(std::ostream& out, const Report& report) {
  if (report.suspects.empty()) return;
  out << "\nSuspects: statements that do not hold where they stand, the earliest first. Whether "
         "they "
         "make an output wrong could not be settled.\n";
  for (std::size_t i = 0; i < std::min(report.suspects.size(), kMaxSuspects); ++i) {
    out << "\nSuspect " << i + 1 << " of " << report.suspects.size() << ": "
        << printable(report.suspects[i].message) << "\n";
    writeDefect(out, report.suspects[i]);
  }
  if (report.suspects.size() > kMaxSuspects) {
    out << "\nand "
        << counted(report.suspects.size() - kMaxSuspects, "more suspect", "more suspects")
        << " (the JSON report has them)\n";
  }
}

void writeInference(std::ostream& out, const Report& report) {
  if (!report.inference) return;
  if (report.inference->lemmas > 0)
    out << "\nLemmas: " << grouped(report.inference->lemmas)
        << " of them are in no file: found by executing a small image of the plan, and proved as "
           "all others (--infer)";
  else out << "\nLemmas: none was found: " << printable(report.inference->reason);
}

void writeStatistics(std::ostream& out, const Statistics& statistics) {
  out << "\nPlan:   " << counted(statistics.ranks, "rank", "ranks") << ", "
      << counted(statistics.microbatches, "microbatch", "microbatches") << "; "
      << counted(statistics.programNodes, "program node stands", "program nodes stand") << " for "
      << grouped(statistics.operatorInstances) << " operator instances; "
      << counted(statistics.lineageEntries, "lineage entry", "lineage entries") << "\n";
  out << "Time:   " << seconds(statistics.secondsTotal);
  std::vector<std::pair<std::string, double>> phases(statistics.secondsByPhase.begin(),
                                                     statistics.secondsByPhase.end());
  std::stable_sort(phases.begin(), phases.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string list;
  for (const auto& [phase, time] : phases) {
    if (time >= 0.005) list += (list.empty() ? "" : ", ") + printable(phase) + " " + seconds(time);
  }
  if (!list.empty()) out << " (" << list << ")";
  out << "\nMemory: " << megabytes(statistics.peakMemoryBytes) << " at most\n";
  if (statistics.workersLost > 0) {
    out << "Lost:   " << counted(statistics.workersLost, "worker process", "worker processes")
        << " crashed or overran the limits\n";
  }
}

void writeDetails(std::ostream& out, const Report& report) {
  if (report.interrupted) out << "Interrupted: this report holds what was done until then.\n";
  writeCauses(out, report);
  writeDefects(out, report);
  writeSuspects(out, report);
  writeProof(out, report);
  writeWrongLineage(out, report);
  writeUndecided(out, report);
  writeInference(out, report);
  writeStatistics(out, report.statistics);
  if (report.confirmation) out << "Run:    " << printable(report.confirmation->text) << "\n";
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

void writeText(std::ostream& out, const Report& report, bool quiet) {
  writeVerdict(out, report);
  if (quiet) return;
  writeDetails(out, report);
}

void writeVerdictLine(std::ostream& out, const PlanResult& result) {
  if (result.report) writeVerdict(out, *result.report);
  else out << (result.inputError ? "INPUT ERROR: " : "ERROR: ") << printable(result.error) << "\n";
}

void writeSummary(std::ostream& out, const std::vector<PlanResult>& results, bool quiet) {
  Totals totals;
  for (const PlanResult& result : results) {
    totals.add(result);
    if (quiet || !result.report || result.report->verdict == Verdict::kEquivalent) continue;
    out << "\n== " << printable(result.plan) << "\n";
    writeDetails(out, *result.report);
  }
  if (!quiet) out << "\n";
  out << "Plans:  " << grouped(results.size()) << ": " << grouped(totals.equivalent)
      << " equivalent, " << grouped(totals.notEquivalent) << " not equivalent, "
      << grouped(totals.undecided) << " undecided";
  if (totals.errors > 0) out << ", " << counted(totals.errors, "error", "errors");
  out << "; " << counted(totals.classes, "class", "classes") << ", of which "
      << grouped(totals.classesFromCache) << " were proved before; " << seconds(totals.seconds)
      << "\n";
}

}  // namespace shardproof
