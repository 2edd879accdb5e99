// SPDX-License-Identifier: Apache-2.0
#include "reader/capture_reader.h"

#include <array>
#include <map>
#include <string>
#include <string_view>

namespace shardproof::reader {

namespace {

AssumptionClass readClass(const Value& value) {
  for (const AssumptionClass c :
       {AssumptionClass::kHarmless, AssumptionClass::kCheckable, AssumptionClass::kRisk})
    if (value.string() == toString(c)) return c;
  value.expectedOneOf("\"harmless\", \"checkable\" or \"risk\"", {"harmless", "checkable", "risk"});
}

std::vector<ComparedOutputs> readCompared(const Value& value) {
  std::vector<ComparedOutputs> compared;
  std::map<std::string, std::string, std::less<>> kindOf;
  for (const Value kind : value.expectObject()) {
    ComparedOutputs& made = compared.emplace_back();
    made.kind = kind.key();
    if (made.kind.empty()) kind.fail("found a kind without a name, expected one (\"gradients\")");
    for (const Value output : kind.expectArray()) {
      const auto [it, added] = kindOf.emplace(output.name(), made.kind);
      if (!added)
        output.fail("found \"" + it->first + "\" a second time, it is among the \"" + it->second +
                    "\" already, expected each output once");
      made.outputs.push_back(it->first);
    }
  }
  return compared;
}

NotCompared readNotCompared(const Value& value) {
  static constexpr std::array<std::string_view, 2> kFields{"what", "because"};
  value.expectFields(kFields);
  return {std::string(value.require("what").name()),
          std::string(value.require("because").string())};
}

Assumption readAssumption(const Value& value) {
  static constexpr std::array<std::string_view, 3> kFields{"name", "class", "text"};
  value.expectFields(kFields);
  return {std::string(value.require("name").name()), readClass(value.require("class")),
          std::string(value.require("text").name())};
}

}  // namespace

Capture readCapture(const Value& value) {
  static constexpr std::array<std::string_view, 4> kFields{"source", "compared", "not_compared",
                                                           "assumptions"};
  value.expectFields(kFields);
  Capture capture;
  if (const auto source = value.find("source")) capture.source = source->string();
  if (const auto compared = value.find("compared")) capture.compared = readCompared(*compared);
  if (const auto list = value.find("not_compared"))
    for (const Value item : list->expectArray())
      capture.notCompared.push_back(readNotCompared(item));
  if (const auto list = value.find("assumptions"))
    for (const Value item : list->expectArray())
      capture.assumptions.push_back(readAssumption(item));
  return capture;
}

}  // namespace shardproof::reader
