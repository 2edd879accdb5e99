// SPDX-License-Identifier: Apache-2.0
#include "report/explain.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "report/format.h"
#include "report/text.h"

namespace shardproof {

namespace {

std::string made(const Cause::Found& found) {
  if (found.node.pointer.empty()) return "given";
  return found.node.op + " " + found.node.pointer;
}

}  // namespace

void explainText(std::ostream& out, const Cause& cause, std::size_t number) {
  out << "Cause " << number << ": " << printable(cause.sentence) << "\n";
  if (cause.fix)
    out << (cause.fix->proved ? "Proved fix: " : "Fix (not proved): ") << printable(cause.fix->text)
        << "\n";
  if (cause.found.empty()) {
    out << "\nNothing of this cause was executed.\n";
    return;
  }
  out << "\nOn one of the ranks, in the order of the computation; found in the model at random "
         "inputs:\n\n";
  std::size_t left = 8, middle = 4;
  for (const Cause::Found& f : cause.found) {
    left = std::max(left, columns(printable(f.tensor)));
    middle = std::max(middle, columns(printable(made(f))));
  }
  out << "  " << padded("the plan", left) << "  " << padded("made by", middle) << "  the model\n";
  for (const Cause::Found& f : cause.found)
    out << "  " << padded(printable(f.tensor), left) << "  " << padded(printable(made(f)), middle)
        << "  " << (f.is.empty() ? "nothing that is known" : printable(f.is))
        << (f.wrong ? "  <- wrong" : "") << "\n";
}

void explainDot(std::ostream& out, const Cause& cause) {
  const auto quoted = [](const std::string& text) {
    std::string q = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') q += '\\';
      q += c;
    }
    return q + "\"";
  };
  std::map<std::string, std::size_t> byTensor;
  out << "digraph cause {\n  node [shape=box];\n";
  for (std::size_t i = 0; i < cause.found.size(); ++i) {
    const Cause::Found& f = cause.found[i];
    byTensor.emplace(f.tensor, i);
    out << "  n" << i << " [label="
        << quoted(printable(f.tensor) + "\n" + printable(made(f)) + "\n" +
                  (f.is.empty() ? "nothing that is known" : printable(f.is)))
        << (f.wrong ? ", color=red" : "") << "];\n";
  }
  for (std::size_t i = 0; i < cause.found.size(); ++i)
    for (const std::string& from : cause.found[i].from)
      if (const auto it = byTensor.find(from); it != byTensor.end() && it->second != i)
        out << "  n" << it->second << " -> n" << i << ";\n";
  out << "}\n";
}

}  // namespace shardproof
