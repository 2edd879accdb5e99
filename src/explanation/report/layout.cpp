// SPDX-License-Identifier: Apache-2.0
#include "report/layout.h"

#include <algorithm>
#include <vector>

#include "report/format.h"

namespace shardproof {

namespace {

constexpr std::size_t kLeastWidth = 30;
constexpr std::string_view kReset = "\x1b[0m";

constexpr char kLabelBegins = '\x0e', kLabelEnds = '\x0f';

std::string_view colourOf(Tone tone) {
  switch (tone) {
    case Tone::kBad:
      return "\x1b[1;31m";
    case Tone::kGood:
      return "\x1b[1;32m";
    case Tone::kOpen:
      return "\x1b[1;33m";
    case Tone::kHead:
      return "\x1b[1m";
    case Tone::kAdvice:
      return "\x1b[32m";
    case Tone::kLabel:
      break;
  }
  return "\x1b[36m";
}

struct Line {
  std::string text;
  std::size_t label = 0;  // its first so many bytes
  Tone tone = Tone::kLabel;
};

Line lineOf(std::string_view marked) {
  Line line;
  for (std::size_t i = 0; i < marked.size(); ++i) {
    if (marked[i] == kLabelBegins && i + 1 < marked.size())
      line.tone = static_cast<Tone>(marked[++i] - '0');
    else if (marked[i] == kLabelEnds) line.label = line.text.size();
    else line.text += marked[i];
  }
  return line;
}

// Where lines that go on begin: below the value, or a step behind the line's own indentation.
std::size_t hanging(const Line& line, std::size_t width) {
  const std::size_t indent = std::min(line.text.find_first_not_of(' '), line.text.size());
  std::size_t column = indent + 2;
  if (line.label > 0 && (indent > 0 || line.label < 9)) {
    column = std::min(line.text.find_first_not_of(' ', line.label), line.text.size());
  } else if (indent > 0) {
    // "     14  plan and model ...": two blanks divide.
    const std::size_t gap = line.text.find("  ", indent);
    column = gap != std::string::npos && gap < 12
                 ? std::min(line.text.find_first_not_of(' ', gap), line.text.size())
                 : indent;
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
std::vector<std::string> wrapped(const Line& whole, std::size_t width) {
  std::vector<std::string> lines;
  const std::size_t hang = hanging(whole, width);
  std::string_view line = whole.text;
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

std::string coloured(const std::string& text, const Line& line) {
  const std::size_t label = std::min(line.label, text.size());
  if (label == 0) return text;
  return std::string(colourOf(line.tone)) + text.substr(0, label) + std::string(kReset) +
         text.substr(label);
}

}  // namespace

std::string label(std::string_view text, Tone tone) {
  std::string marked{kLabelBegins, static_cast<char>('0' + static_cast<int>(tone))};
  const std::size_t end = text.find_last_not_of(' ') + 1;
  marked += text.substr(0, end);
  marked += kLabelEnds;
  marked += text.substr(end);
  return marked;
}

std::string laidOut(std::string_view text, const TextStyle& style) {
  const std::size_t width = std::max(style.width, kLeastWidth);
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const Line line = lineOf(text.substr(0, end));
    std::vector<std::string> lines =
        style.width > 0 ? wrapped(line, width) : std::vector{line.text};
    if (style.colour) lines.front() = coloured(lines.front(), line);
    for (std::size_t i = 0; i < lines.size(); ++i) out += (i > 0 ? "\n" : "") + lines[i];
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace shardproof
