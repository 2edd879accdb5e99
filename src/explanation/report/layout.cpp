// SPDX-License-Identifier: Apache-2.0
#include "report/layout.h"

#include <algorithm>
#include <array>
#include <vector>

#include "report/format.h"

namespace shardproof {

namespace {

constexpr std::size_t kLeastWidth = 30;
constexpr std::string_view kReset = "\x1b[0m";

struct Rule {
  std::string_view begin, colour;
  bool whole;  // the line up to its end, not the label only
};
constexpr std::string_view kBad = "\x1b[1;31m", kGood = "\x1b[1;32m", kOpen = "\x1b[1;33m",
                           kHead = "\x1b[1m", kLabel = "\x1b[36m", kAdvice = "\x1b[32m";
// The first that fits counts. Lines begin with our own words, whatever names the files have.
constexpr std::array kRules = {
    Rule{"NOT EQUIVALENT:", kBad, false},
    Rule{"EQUIVALENT:", kGood, false},
    Rule{"UNDECIDED:", kOpen, false},
    Rule{"CONDITIONAL:", kOpen, false},
    Rule{"INPUT ERROR:", kBad, false},
    Rule{"ERROR:", kBad, false},
    Rule{"Cause ", kBad, false},
    Rule{"Suspected cause ", kOpen, false},
    Rule{"Defect ", kHead, false},
    Rule{"Suspect ", kHead, false},
    Rule{"Suspects:", kHead, false},
    Rule{"Approved difference:", kOpen, false},
    Rule{"Compared:", kHead, false},
    Rule{"Not compared:", kOpen, false},
    Rule{"Not compared (allowed):", kHead, false},
    Rule{"Assumed (risk, not accepted):", kOpen, false},
    Rule{"Assumed (", kHead, false},
    Rule{"Proved:", kHead, false},
    Rule{"Undecided:", kOpen, false},
    Rule{"Wrong lineage:", kOpen, false},
    Rule{"Plan:", kHead, false},
    Rule{"Time:", kHead, false},
    Rule{"Memory:", kHead, false},
    Rule{"Lost:", kOpen, false},
    Rule{"Run:", kHead, false},
    Rule{"Plans:", kHead, false},
    Rule{"  equivalent if:", kAdvice, false},
    Rule{"  mend:", kAdvice, false},
    Rule{"== ", kHead, true},
};
// Of the blocks of causes and defects.
constexpr std::array<std::string_view, 11> kLabels = {
    "  shows in:", "  rank:",       "  ranks:", "  microbatch:", "  microbatches:", "  look at:",
    "  claim:",    "  differs at:", "  when:",  "  tensor:",     "  explains:"};

// Where the label that a line begins with ends, behind its colon; 0: there is none.
std::size_t labelEnd(std::string_view line) {
  const auto behind = [&](std::string_view begin) {
    const std::size_t colon = line.find(':', begin.size() - 1);
    return colon == std::string_view::npos ? std::size_t{0} : colon + 1;
  };
  for (const Rule& rule : kRules)
    if (line.starts_with(rule.begin)) return rule.whole ? line.size() : behind(rule.begin);
  for (const std::string_view label : kLabels)
    if (line.starts_with(label)) return label.size();
  return 0;
}

std::string_view colourOf(std::string_view line) {
  for (const Rule& rule : kRules)
    if (line.starts_with(rule.begin)) return rule.colour;
  return kLabel;
}

// Where lines that go on begin: below the value, or a step behind the line's own indentation.
std::size_t hanging(std::string_view line, std::size_t width) {
  const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
  std::size_t column = indent + 2;
  if (indent > 0) {
    // "  look at:     plan ...", "     14  plan and model ...": two columns of blanks and more
    // divide.
    const std::size_t gap = line.find("  ", indent);
    const std::size_t label = labelEnd(line);
    if (label > 0) column = std::min(line.find_first_not_of(' ', label), line.size());
    else if (gap != std::string_view::npos && gap < 12)
      column = std::min(line.find_first_not_of(' ', gap), line.size());
    else column = indent;
  } else if (const std::size_t label = labelEnd(line); label > 0 && label < 9) {
    column = std::min(line.find_first_not_of(' ', label), line.size());  // "Plan:   4 ranks"
  }
  return column <= width / 2 ? column : indent + 2;
}

std::size_t bytesOf(std::string_view text, std::size_t columnsWanted) {
  std::size_t bytes = 0, taken = 0;
  while (bytes < text.size()) {
    std::size_t next = bytes + 1;
    while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xc0) == 0x80) ++next;
    if (taken == columnsWanted) break;
    ++taken;
    bytes = next;
  }
  return bytes;
}

// A line as several, without line ends.
std::vector<std::string> wrapped(std::string_view line, std::size_t width) {
  std::vector<std::string> lines;
  const std::size_t hang = hanging(line, width);
  std::string prefix;
  while (columns(line) + prefix.size() > width) {
    const std::size_t room = bytesOf(line, width - prefix.size());
    // The last blank that fits, but not one of the indentation.
    const std::size_t text = std::min(line.find_first_not_of(' '), line.size());
    std::size_t blank = line.rfind(' ', room);
    if (blank == std::string_view::npos || blank <= text) blank = 0;
    // What is one long word is cut; so is one that would leave most of the line empty.
    const std::size_t end = blank > 0 && columns(line.substr(0, blank)) * 3 >= width ? blank : room;
    std::string_view first = line.substr(0, end);
    while (first.ends_with(' ')) first.remove_suffix(1);
    lines.push_back(prefix + std::string(first));
    line.remove_prefix(end);
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    prefix.assign(hang, ' ');
  }
  lines.push_back(prefix + std::string(line));
  return lines;
}

std::string coloured(const std::string& line, std::string_view whole) {
  const std::size_t label = std::min(labelEnd(whole), line.size());
  if (label == 0) return line;
  return std::string(colourOf(whole)) + line.substr(0, label) + std::string(kReset) +
         line.substr(label);
}

}  // namespace

std::string laidOut(std::string_view text, const TextStyle& style) {
  if (!style.colour && style.width == 0) return std::string(text);
  const std::size_t width = std::max(style.width, kLeastWidth);
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    std::vector<std::string> lines =
        style.width > 0 ? wrapped(line, width) : std::vector{std::string(line)};
    if (style.colour) lines.front() = coloured(lines.front(), line);
    for (std::size_t i = 0; i < lines.size(); ++i) out += (i > 0 ? "\n" : "") + lines[i];
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace shardproof
