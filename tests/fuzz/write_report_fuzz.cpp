// SPDX-License-Identifier: Apache-2.0
// Reports about anything: names, messages and numbers as hostile files could make them. The text
// must not carry control characters to a terminal, the JSON must be JSON.
#include <fuzzer/FuzzedDataProvider.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "check/checker.h"
#include "fuzz_support.h"
#include "report/json.h"
#include "report/text.h"

using namespace shardproof;

namespace {

class Drawer {
 public:
  Drawer(const std::uint8_t* data, std::size_t size) : data_(data, size) {}

  std::string text() { return data_.ConsumeRandomLengthString(40); }
  double number() {
    return data_.ConsumeBool() ? data_.ConsumeFloatingPoint<double>()
                               : static_cast<double>(data_.ConsumeIntegral<std::int8_t>()) / 16;
  }
  template <class T>
  T integer() {
    return data_.ConsumeIntegral<T>();
  }
  template <class E>
  E choose(E last) {
    return static_cast<E>(data_.ConsumeIntegralInRange<int>(0, static_cast<int>(last)));
  }
  template <class F>
  void list(F&& item) {
    for (std::size_t n = data_.ConsumeIntegralInRange<std::size_t>(0, 6);
         n > 0 && data_.remaining_bytes() > 0; --n)
      item();
  }
  Shape shape() {
    Shape shape;
    list([&] { shape.push_back(integer<std::int64_t>()); });
    return shape;
  }
  Counterexample counterexample() {
    Counterexample c;
    list([&] { c.assignment.push_back({text(), number()}); });
    c.omitted = integer<std::uint8_t>();
    c.element = text();
    c.logical = number();
    c.parallel = number();
    c.endToEnd = integer<bool>();
    return c;
  }
  Report report() {
    Report r;
    r.model = text();
    r.plan = text();
    r.verdict = choose(Verdict::kConditional);
    r.reason = text();
    r.interrupted = integer<bool>();
    r.outputs = integer<std::size_t>();
    r.outputsProved = integer<std::size_t>();
    list([&] {
      StageReport s;
      s.tensor = text();
      s.role = choose(Role::kAssumed);
      s.entry = integer<std::int32_t>();
      s.verdict = choose(StageVerdict::kWrongLineage);
      s.method = choose(Method::kNumeric);
      s.reason = text();
      s.classId = integer<std::int8_t>();
      s.logicalNodes = integer<std::size_t>();
      s.parallelNodes = integer<std::size_t>();
      s.seconds = number();
      list([&] { s.reducedShapes.push_back({text(), shape(), shape()}); });
      list([&] { s.assumptions.push_back(integer<std::int32_t>()); });
      r.stages.push_back(std::move(s));
    });
    list([&] {
      Defect d;
      d.kind = choose(DefectKind::kDeadlock);
      d.message = text();
      d.tensor = text();
      d.lineage = text();
      list([&] {
        d.ranks.push_back(integer<bool>() ? integer<std::uint32_t>() : integer<std::uint8_t>());
      });
      if (integer<bool>()) d.microbatch = integer<std::int32_t>();
      list([&] { d.nodes.push_back({integer<bool>(), text(), text(), text()}); });
      if (integer<bool>()) d.counterexample = counterexample();
      r.defects.push_back(std::move(d));
    });
    r.source = text();
    list([&] {
      ComparedOutputs kind{text(), {}};
      list([&] { kind.outputs.push_back(text()); });
      r.compared.push_back(std::move(kind));
    });
    list([&] { r.notCompared.push_back({text(), text(), integer<bool>()}); });
    list([&] {
      r.assumptions.push_back({text(), choose(AssumptionClass::kRisk), text(), integer<bool>()});
    });
    list([&] { r.approved.push_back({text(), text(), text(), integer<std::int32_t>()}); });
    Statistics& s = r.statistics;
    s.programNodes = integer<std::size_t>();
    s.ranks = integer<std::size_t>();
    s.microbatches = integer<std::size_t>();
    s.operatorInstances = number();
    s.classes = integer<std::size_t>();
    s.classesFromCache = integer<std::uint8_t>();
    s.secondsTotal = number();
    list([&] { s.secondsByPhase[text()] = number(); });
    s.peakMemoryBytes = integer<std::size_t>();
    s.workersLost = integer<std::size_t>();
    return r;
  }

 private:
  FuzzedDataProvider data_;
};

void requireHarmless(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    fuzz::require(byte == '\n' || (byte >= 0x20 && byte != 0x7f),
                  "no control characters in the text", std::to_string(byte));
    // U+0080 to U+009F, of which U+009B begins a terminal's command as ESC [ does.
    fuzz::require(
        byte != 0xc2 || i + 1 == text.size() || static_cast<unsigned char>(text[i + 1]) >= 0xa0,
        "no control characters beyond ASCII in the text");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Drawer draw(data, size);
  std::vector<PlanResult> results;
  draw.list([&] {
    PlanResult result;
    result.plan = draw.text();
    if (draw.integer<bool>()) result.report = draw.report();
    else result.error = draw.text();
    result.inputError = draw.integer<bool>();
    results.push_back(std::move(result));
  });
  std::ostringstream summary;
  for (const PlanResult& result : results) {
    if (result.report) {
      std::ostringstream text, quiet;
      writeText(text, *result.report, false);
      writeText(quiet, *result.report, true);
      requireHarmless(text.str());
      fuzz::require(
          quiet.str().find('\n') + 1 == quiet.str().size() && text.str().starts_with(quiet.str()),
          "the verdict is one line");
      const auto json = nlohmann::json::parse(jsonText(*result.report, 10));
      fuzz::require(json.at("verdict") == toString(result.report->verdict) &&
                        json.at("stages").size() == result.report->stages.size(),
                    "the JSON report says the same");
    }
    std::ostringstream line;
    writeVerdictLine(line, result);
    fuzz::require(line.str().find('\n') + 1 == line.str().size(), "a plan's line is one line");
    summary << line.str();
  }
  writeSummary(summary, results, TextStyle{});
  requireHarmless(summary.str());
  fuzz::require(
      nlohmann::json::parse(plansJsonText(results, 10)).at("plans").size() == results.size(),
      "every plan is in the JSON report");

  // What a worker sends.
  StageOutcome outcome;
  outcome.refutedBy = draw.choose(Method::kNumeric);
  outcome.reason = draw.text();
  outcome.claim = draw.integer<std::int32_t>();
  outcome.counterexample = draw.counterexample();
  draw.list([&] { outcome.reducedShapes.push_back({draw.text(), draw.shape(), draw.shape()}); });
  const std::string sent = serialize(outcome);
  const StageOutcome received = deserialize(sent);
  fuzz::require(received.reason == outcome.reason && received.verdict() == outcome.verdict() &&
                    serialize(received) == sent,
                "what a worker sends is what arrives");
  return 0;
}
