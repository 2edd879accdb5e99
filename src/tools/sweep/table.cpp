// SPDX-License-Identifier: Apache-2.0
#include "sweep/table.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "report/format.h"

namespace shardproof::sweep {
namespace {

constexpr std::size_t kMostNameColumns = 72, kMostNoteColumns = 160;

struct Column {
  const char* title;
  std::size_t width;
};
// Numbers, to the right, each with two blanks before it at least.
constexpr std::array kColumns = {
    Column{"ranks", 7},  Column{"outputs", 11},    Column{"stages", 7},   Column{"classes", 7},
    Column{"cached", 6}, Column{"generate s", 10}, Column{"verify s", 8}, Column{"MB", 6}};
constexpr std::size_t kVerdictWidth = 14;  // "not equivalent"

const char* markOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return "ok";
    case Outcome::kSkipped:
    case Outcome::kInterrupted:
    case Outcome::kNotRun:
      return "-";
    default:
      return "FAIL";
  }
}

std::string verdictOf(const Result& result) {
  std::string text =
      result.state == State::kDone ? shardproof::toString(*result.verdict) : toString(result.state);
  std::replace(text.begin(), text.end(), '-', ' ');
  return text;
}

std::string noteOf(const Result& result) {
  const Outcome outcome = outcomeOf(result);
  std::string note;
  if (outcome == Outcome::kPassed && result.expect == Verdict::kNotEquivalent) note = "as expected";
  if (outcome == Outcome::kFailed && result.expect == Verdict::kNotEquivalent)
    note = "expected not equivalent";
  if (!result.reason.empty()) note = result.reason;
  else if (outcome == Outcome::kFailed && result.expect == Verdict::kEquivalent &&
           !result.report.at("defects").empty())
    note = result.report.at("defects").front().at("message").get<std::string>();
  note = printable(note);
  if (note.size() > kMostNoteColumns) {
    std::size_t cut = kMostNoteColumns;
    while (cut > 0 && (static_cast<unsigned char>(note[cut]) & 0xc0) == 0x80)
      --cut;  // not inside a character
    note = note.substr(0, cut) + "...";
  }
  return result.resumed ? note + (note.empty() ? "" : "; ") + "from the earlier run" : note;
}

std::string hundredths(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  return text.data();
}

std::string trimmed(std::string text) {
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

const char* titleOf(ChangeKind kind) {
  switch (kind) {
    case ChangeKind::kWorse:
      return "worse";
    case ChangeKind::kBetter:
      return "better";
    case ChangeKind::kOther:
      return "another verdict";
    case ChangeKind::kNew:
      return "new";
    case ChangeKind::kRemoved:
      return "no longer there";
    case ChangeKind::kInput:
      return "another input";
    case ChangeKind::kCounts:
      return "other numbers";
    case ChangeKind::kSlower:
      return "slower";
    case ChangeKind::kFaster:
      return "faster";
  }
  return "";
}

}  // namespace

Table::Table(const std::vector<Result>& results) : nameWidth_(4) {
  for (const Result& result : results)
    nameWidth_ = std::max(nameWidth_, columns(printable(result.name)));
  nameWidth_ = std::min(nameWidth_, kMostNameColumns);
}

std::string Table::header() const {
  std::string text =
      padded("", 6) + padded("name", nameWidth_) + "  " + padded("verdict", kVerdictWidth);
  for (const Column& column : kColumns) text += "  " + alignedRight(column.title, column.width);
  return text + "\n";
}

std::string Table::row(const Result& result) const {
  std::string text = padded(markOf(outcomeOf(result)), 6) +
                     padded(printable(result.name), nameWidth_) + "  " +
                     padded(verdictOf(result), kVerdictWidth);
  const Figures& f = result.figures;
  std::array<std::string, kColumns.size()> cells;
  if (result.verdict)
    cells = {grouped(f.ranks),
             grouped(f.outputsProved) + "/" + grouped(f.outputs),
             grouped(f.stages),
             grouped(f.classes),
             grouped(f.classesFromCache),
             result.generateSeconds > 0 ? hundredths(result.generateSeconds) : "",
             hundredths(result.verifySeconds),
             grouped((f.peakMemoryBytes + (1u << 20) - 1) >> 20)};
  for (std::size_t i = 0; i < cells.size(); ++i)
    text += "  " + alignedRight(cells[i], kColumns[i].width);
  return trimmed(text + "  " + noteOf(result)) + "\n";
}

std::string detailsText(const Sweep& sweep) {
  std::string text;
  for (const Result& result : sweep.results) {
    const Outcome outcome = outcomeOf(result);
    if (outcome == Outcome::kPassed || result.text.empty()) continue;
    text += "\n== " + printable(result.name) + "\n" + result.text;
  }
  return text;
}

std::string changesText(const std::vector<Change>& changes, const std::string& baseline) {
  std::string text = "\nAgainst " + printable(baseline) + ": ";
  if (changes.empty()) return text + "no change\n";
  std::map<ChangeKind, std::size_t> counts;
  for (const Change& change : changes) ++counts[change.kind];
  std::string list;
  for (const auto& [kind, count] : counts)
    list += (list.empty() ? "" : ", ") + grouped(count) + " " + titleOf(kind);
  text += list + "\n";
  for (const Change& change : changes)
    text += "  " + padded(titleOf(change.kind), 16) + printable(change.name) + ": " +
            printable(change.text) + "\n";
  return text;
}

std::string summaryText(const Sweep& sweep) {
  const Count count = countOf(sweep);
  std::string text = "Sweep:  " + counted(sweep.results.size(), "configuration", "configurations") +
                     ": " + grouped(count.equivalent) + " equivalent, " +
                     (count.conditional > 0 ? grouped(count.conditional) + " conditional, " : "") +
                     grouped(count.notEquivalent) + " not equivalent, " + grouped(count.undecided) +
                     " undecided";
  const auto add = [&](std::size_t n, const char* one, const char* many) {
    if (n > 0) text += ", " + counted(n, one, many);
  };
  add(count.skipped, "skipped", "skipped");
  add(count.inputErrors, "input error", "input errors");
  add(count.crashed, "crashed", "crashed");
  add(count.interrupted, "interrupted", "interrupted");
  add(count.notRun, "not run", "not run");
  text += "; " + grouped(count.passed) + " as expected";
  if (count.resumed > 0) text += ", " + grouped(count.resumed) + " from the earlier run";
  return text + "; " + counted(count.classes, "class", "classes") + ", of which " +
         grouped(count.classesFromCache) + " were proved before; " + seconds(count.seconds) + "\n";
}

}  // namespace shardproof::sweep
