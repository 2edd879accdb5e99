// SPDX-License-Identifier: Apache-2.0
#include "report/text_findings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ostream>
#include <string>
#include <string_view>

#include "report/format.h"
#include "report/text.h"

namespace shardproof {
namespace {

constexpr std::size_t kMaxAssignments = 12;
constexpr std::size_t kMaxNodes = 8;
constexpr std::size_t kMaxNames = 6;
constexpr std::size_t kMaxDefects = 10, kMaxSuspects = 3;
constexpr std::size_t kMostOfName = 120, kMostOfLine = 1500;  // bytes

}  // namespace

std::string asName(const std::string& text, const TextStyle& style) {
  return printable(text, style.atMost(kMostOfName));
}
std::string asLine(const std::string& text, const TextStyle& style) {
  return printable(text, style.atMost(kMostOfLine));
}

std::string nameList(const std::vector<std::string>& names, const TextStyle& style) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), style.atMost(kMaxNames)); ++i)
    text += (i ? ", " : "") + asName(names[i], style);
  if (names.size() > style.atMost(kMaxNames))
    text += " and " + grouped(names.size() - style.atMost(kMaxNames)) + " more";
  return text;
}

namespace {

// All digits that the double has: two values that differ must not look the same.
std::string exact(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

void writeNodes(std::ostream& out, const std::vector<NodePlace>& nodes, const std::string& first,
                const std::string& indent, const TextStyle& style) {
  const std::size_t shown = std::min(nodes.size(), style.atMost(kMaxNodes));
  std::size_t place = 0, op = 0;
  for (std::size_t i = 0; i < shown; ++i) {
    place = std::max(place, columns(asName(nodes[i].pointer, style)));
    op = std::max(op, columns(asName(nodes[i].op, style)));
  }
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& node = nodes[i];
    out << (i == 0 ? label(first, Tone::kLabel) : indent) << (node.inPlan ? "plan   " : "model  ")
        << padded(asName(node.pointer, style), place) << "  ";
    if (node.location.empty()) out << asName(node.op, style);
    else out << padded(asName(node.op, style), op) << "  " << asName(node.location, style);
    out << "\n";
  }
  if (nodes.size() > shown) out << indent << "and " << grouped(nodes.size() - shown) << " more\n";
}

void writeCounterexample(std::ostream& out, const Counterexample& example, const TextStyle& style) {
  out << label("  differs at:  ", Tone::kLabel) << asName(example.element, style) << " is "
      << exact(example.logical) << " in the model, " << exact(example.parallel) << " in the plan\n";
  const std::size_t shown = std::min(example.assignment.size(), style.atMost(kMaxAssignments));
  if (shown == 0) return;
  out << label("  when:        ", Tone::kLabel)
      << (example.endToEnd ? "(values of the plan's own inputs)"
                           : "(values of the tensors that this stage starts from)")
      << "\n";
  std::size_t element = 0;
  for (std::size_t i = 0; i < shown; ++i) {
    element = std::max(element, columns(asName(example.assignment[i].element, style)));
  }
  for (std::size_t i = 0; i < shown; ++i) {
    const std::string text = exact(example.assignment[i].value);
    out << "    " << padded(asName(example.assignment[i].element, style), element) << " = "
        << (text.front() == '-' ? "" : " ") << text << "\n";
  }
  const std::size_t more = example.assignment.size() - shown + example.omitted;
  if (more > 0) out << "    and " << grouped(more) << " more\n";
}

void writeDefect(std::ostream& out, const Defect& defect, const TextStyle& style) {
  const std::string indent(15, ' ');
  if (!defect.lineage.empty())
    out << label("  claim:       ", Tone::kLabel) << asLine(defect.lineage, style) << "\n";
  else if (!defect.tensor.empty())
    out << label("  tensor:      ", Tone::kLabel) << asName(defect.tensor, style) << "\n";
  if (!defect.ranks.empty())
    out << label(defect.ranks.size() == 1 ? "  rank:        " : "  ranks:       ", Tone::kLabel)
        << formatRanks(defect.ranks) << "\n";
  if (defect.microbatch)
    out << label("  microbatch:  ", Tone::kLabel) << *defect.microbatch << "\n";
  writeNodes(out, defect.nodes, "  look at:     ", indent, style);
  if (defect.counterexample) writeCounterexample(out, *defect.counterexample, style);
}

// The same fix in several places is one text for each, joined by semicolons.
std::string firstFixes(const std::string& fixes, const TextStyle& style) {
  constexpr std::size_t kMostFixes = 2;
  constexpr std::string_view kBetween = "; ";
  std::size_t end = 0, count = 1, left = 0;
  for (std::size_t at = fixes.find(kBetween); at != std::string::npos;
       at = fixes.find(kBetween, at + kBetween.size()), ++count) {
    if (count == style.atMost(kMostFixes)) end = at;
    left += count >= style.atMost(kMostFixes);
  }
  if (left == 0) return asLine(fixes, style);
  return asLine(fixes.substr(0, end), style) + "; and so in " + grouped(left) + " more " +
         (left == 1 ? "place" : "places");
}

// "norm.weight, y in 9 places": where a cause shows.
void writeCause(std::ostream& out, const Cause& cause, const TextStyle& style) {
  if (cause.fix) {
    out << label(cause.fix->proved ? "  proved fix:  " : "  fix:         ", Tone::kAdvice)
        << firstFixes(cause.fix->text, style);
    out << (cause.fix->proved ? "" : " (not proved: what fails here agrees then at random inputs)")
        << "\n";
  }
  if (!cause.tensors.empty()) {
    out << label("  shows in:    ", Tone::kLabel) << nameList(cause.tensors, style);
    if (cause.defects.size() > 1) out << " (" << grouped(cause.defects.size()) << " places)";
    out << "\n";
  }
  if (!cause.ranks.empty())
    out << label(cause.ranks.size() == 1 ? "  rank:        " : "  ranks:       ", Tone::kLabel)
        << formatRanks(cause.ranks) << "\n";
  if (!cause.microbatches.empty())
    out << label(cause.microbatches.size() == 1 ? "  microbatch:  " : "  microbatches: ",
                 Tone::kLabel)
        << formatRanks(cause.microbatches) << "\n";
  writeNodes(out, cause.nodes, "  look at:     ", std::string(15, ' '), style);
}

}  // namespace

void writeCauses(std::ostream& out, const Report& report, const TextStyle& style) {
  for (std::size_t i = 0; i < std::min(report.causes.size(), style.atMost(style.maxCauses)); ++i) {
    // Of an undecided plan whether it is one of a wrong output is what was not settled.
    const bool wrong = report.verdict == Verdict::kNotEquivalent;
    out << "\n"
        << label((wrong ? "Cause " : "Suspected cause ") + std::to_string(i + 1) + " of " +
                     std::to_string(report.causes.size()) + ":",
                 wrong ? Tone::kBad : Tone::kOpen)
        << " " << asLine(report.causes[i].sentence, style) << "\n";
    writeCause(out, report.causes[i], style);
  }
  if (report.causes.size() > style.atMost(style.maxCauses))
    out << "\nand "
        << counted(report.causes.size() - style.atMost(style.maxCauses), "more cause",
                   "more causes")
        << " (--verbose shows all)\n";
}

// Of a cause one place is told; of one that is not shown, none.
void writeDefects(std::ostream& out, const Report& report, const TextStyle& style) {
  std::vector<char> told(report.defects.size(), 0);
  for (std::size_t c = 0; c < report.causes.size(); ++c) {
    const auto& defects = report.causes[c].defects;
    const bool shown = c < style.atMost(style.maxCauses);
    for (std::size_t i = shown ? 1 : 0; i < defects.size(); ++i)
      if (defects[i] < told.size()) told[defects[i]] = 1;
    // Of a plan that cannot run the cause often is the defect, word by word.
    if (shown && !defects.empty() && defects[0] < told.size() &&
        report.defects[defects[0]].message == report.causes[c].sentence)
      told[defects[0]] = 1;
  }
  std::size_t shown = 0, more = 0;
  for (std::size_t i = 0; i < report.defects.size(); ++i) {
    if (told[i] && !style.verbose) continue;
    if (shown == style.atMost(kMaxDefects)) {
      ++more;
      continue;
    }
    ++shown;
    const Defect& defect = report.defects[i];
    out << "\n"
        << label("Defect " + std::to_string(i + 1) + " of " +
                     std::to_string(report.defects.size()) + " (" + toString(defect.kind) + "):",
                 Tone::kHead)
        << " " << asLine(defect.message, style) << "\n";
    writeDefect(out, defect, style);
  }
  if (more > 0)
    out << "\nand " << counted(more, "more defect", "more defects") << " (--verbose shows all)\n";
}

void writeSuspects(std::ostream& out, const Report& report, const TextStyle& style) {
  if (report.suspects.empty()) return;
  out << "\n"
      << label("Suspects:", Tone::kHead)
      << " statements that do not hold where they stand, the earliest first. Whether "
         "they make an output wrong could not be settled.\n";
  for (std::size_t i = 0; i < std::min(report.suspects.size(), style.atMost(kMaxSuspects)); ++i) {
    out << "\n"
        << label("Suspect " + std::to_string(i + 1) + " of " +
                     std::to_string(report.suspects.size()) + ":",
                 Tone::kHead)
        << " " << asLine(report.suspects[i].message, style) << "\n";
    writeDefect(out, report.suspects[i], style);
  }
  if (report.suspects.size() > style.atMost(kMaxSuspects)) {
    out << "\nand "
        << counted(report.suspects.size() - style.atMost(kMaxSuspects), "more suspect",
                   "more suspects")
        << " (--verbose shows all)\n";
  }
}

}  // namespace shardproof
