// SPDX-License-Identifier: Apache-2.0
#include "report/ledger.h"

#include <algorithm>
#include <ostream>
#include <set>
#include <utility>

#include "report/format.h"
#include "report/text_findings.h"

namespace shardproof {

namespace {

constexpr std::size_t kMostConditions = 3;    // by name, in one line
constexpr std::size_t kMostNotCompared = 20;  // lines

// Kinds are plurals ("gradients"), but for "loss".
std::string ofKind(const std::string& kind, std::size_t count, const TextStyle& style) {
  std::string name = asName(kind, style);
  const bool plural = name.ends_with('s') && !name.ends_with("ss");
  if (count == 1 && !plural) return name;
  if (count == 1) name.pop_back();
  else if (name.ends_with("ss")) name += "es";
  return grouped(count) + " " + name;
}

// As a shell takes it: names come from files.
std::string quoted(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-/:").find(c) != std::string_view::npos;
  });
  if (plain) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void writeAssumptions(std::ostream& out, const Report& report, const TextStyle& style) {
  for (const AssumptionClass kind :
       {AssumptionClass::kRisk, AssumptionClass::kCheckable, AssumptionClass::kHarmless}) {
    const bool fold = kind == AssumptionClass::kHarmless && !style.verbose;
    std::set<std::string> folded;
    for (const Assumption& a : report.assumptions) {
      if (a.kind != kind || (fold && !folded.insert(a.name).second)) continue;
      const bool open = kind == AssumptionClass::kRisk && !a.accepted;
      const char* accepted = kind != AssumptionClass::kRisk ? ""
                             : a.accepted                   ? ", accepted"
                                                            : ", not accepted";
      out << label("Assumed (" + std::string(toString(kind)) + accepted + "):",
                   open ? Tone::kOpen : Tone::kHead)
          << " " << asName(a.name, style);
      const auto same = std::count_if(
          report.assumptions.begin(), report.assumptions.end(),
          [&](const Assumption& other) { return other.kind == kind && other.name == a.name; });
      if (fold && same > 1) out << " (" << grouped(static_cast<std::size_t>(same)) << ")";
      out << ": " << asLine(a.text, style) << "\n";
    }
  }
}

}  // namespace

std::string comparedText(const Report& report, const TextStyle& style) {
  std::string text;
  for (const ComparedOutputs& kind : report.compared)
    text += (text.empty() ? "" : ", ") + ofKind(kind.kind, kind.outputs.size(), style);
  return text.empty() ? "nothing" : text;
}

std::vector<UnmetCondition> conditionsOf(const Report& report) {
  return unmetConditions(report.assumptions, report.notCompared);
}

std::string conditionNames(const Report& report, const TextStyle& style) {
  const std::vector<UnmetCondition> conditions = conditionsOf(report);
  std::string names;
  const std::size_t shown = std::min(conditions.size(), style.atMost(kMostConditions));
  for (std::size_t i = 0; i < shown; ++i)
    names += (i == 0 ? "" : ", ") + asName(conditions[i].name, style) +
             (conditions[i].compare ? " (not compared)" : "");
  if (shown < conditions.size()) names += " and " + grouped(conditions.size() - shown) + " more";
  return names;
}

std::string acceptingOptions(const Report& report, const TextStyle& style) {
  const std::vector<UnmetCondition> conditions = conditionsOf(report);
  std::string options;
  const std::size_t shown = std::min(conditions.size(), style.atMost(kMostConditions));
  for (std::size_t i = 0; i < shown; ++i)
    options += std::string(i == 0 ? "" : " ") +
               (conditions[i].compare ? "--allow-uncompared " : "--accept ") +
               quoted(asName(conditions[i].name, style));
  return options + (shown < conditions.size() ? " ..." : "");
}

void writeApproved(std::ostream& out, const Report& report, const TextStyle& style) {
  for (const ApprovedDifference& difference : report.approved)
    out << label("Approved difference:", Tone::kOpen) << " " << asName(difference.name, style)
        << ": " << asLine(difference.claim, style) << " (taken as given)\n";
}

void writeLedger(std::ostream& out, const Report& report, const TextStyle& style) {
  out << "\n" << label("Compared:", Tone::kHead) << " " << comparedText(report, style) << "\n";
  const std::size_t shown = std::min(report.notCompared.size(), style.atMost(kMostNotCompared));
  for (std::size_t i = 0; i < shown; ++i) {
    const NotCompared& item = report.notCompared[i];
    out << label(item.allowed ? "Not compared (allowed):" : "Not compared:",
                 item.allowed ? Tone::kHead : Tone::kOpen)
        << " " << asName(item.what, style);
    if (!item.because.empty()) out << " because " << asLine(item.because, style);
    out << "\n";
  }
  if (shown < report.notCompared.size())
    out << label("Not compared:", Tone::kOpen) << " " << grouped(report.notCompared.size() - shown)
        << " more\n";
  writeAssumptions(out, report, style);
}

}  // namespace shardproof
