// SPDX-License-Identifier: Apache-2.0
#include "report/sarif.h"

#include <map>
#include <nlohmann/json.hpp>

#include "report/findings.h"
#include "report/source_place.h"
#include "report/version.h"

namespace shardproof {

namespace {

using Json = nlohmann::ordered_json;

// A relative reference or a file URI: bytes that a path of a URI cannot hold are coded.
std::string uriOf(const std::string& file) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string uri = file.starts_with("/") ? "file://" : "";
  // "a:b" at the beginning would be a scheme.
  const std::string path = uri.empty() && file.find(':') != std::string::npos ? "./" + file : file;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
                       (byte >= 'a' && byte <= 'z') ||
                       std::string_view("/-_.~!$&'()*+,;=:@").find(c) != std::string_view::npos;
    if (plain) uri += c;
    else uri.append({'%', kHex[byte >> 4], kHex[byte & 15]});
  }
  return uri;
}

Json locationOf(const Finding& finding) {
  const auto source = sourcePlace(finding.location);
  Json physical = {{"artifactLocation", {{"uri", uriOf(source ? source->file : finding.file)}}}};
  if (source) {
    physical["region"] = {{"startLine", source->line}};
    if (source->column > 0) physical["region"]["startColumn"] = source->column;
  }
  Json location = {{"physicalLocation", std::move(physical)}};
  if (!finding.pointer.empty())
    location["logicalLocations"] = Json::array(
        {{{"fullyQualifiedName", finding.file + "#" + finding.pointer}, {"kind", "element"}}});
  return location;
}

const char* levelName(Finding::Level level) {
  return level == Finding::Level::kError ? "error" : "warning";
}

const std::map<std::string, std::string>& ruleTexts() {
  static const std::map<std::string, std::string> texts = {
      {"partial-sum", "A partial sum is used as if it were complete"},
      {"scaled", "A tensor is a multiple of what it has to be"},
      {"other-place", "Ranks hold another part of a tensor than they have to"},
      {"input-lineage", "The lineage of an input or a weight names another part than a rank has"},
      {"lineage", "A tensor of the plan does not hold the values that the model gives it"},
      {"shape", "A local tensor is declared with another shape than its operator produces"},
      {"double-assignment", "A local tensor has two producers"},
      {"unproduced", "A tensor is read on a rank that never produces it, or too early"},
      {"collective", "The members of a collective do not fit each other"},
      {"send-receive", "A message's sender and receiver do not fit each other"},
      {"deadlock", "Ranks wait for each other"},
      {"async", "Memory is used while communication is under way"},
      {"conditional", "The proof rests on an assumption that could hide a bug and is not accepted"},
      {"not-compared", "Something is not compared, and that is not allowed"},
      {"undecided", "Whether the plan is equivalent could not be settled"},
      {"wrong-lineage", "A cut point of the lineage does not hold although the outputs do"},
      {"input-error", "Model or plan cannot be read"},
      {"internal-error", "The program failed"},
  };
  return texts;
}

}  // namespace

std::string sarifText(const std::vector<PlanResult>& results, int exitCode) {
  Json rules = Json::array(), findings = Json::array(), artifacts = Json::array();
  std::map<std::string, std::size_t> ruleIndex;
  bool internal = false;
  for (const PlanResult& result : results) {
    internal = internal || (!result.report && !result.inputError);
    for (const Finding& finding : findingsOf(result)) {
      const auto [rule, added] = ruleIndex.emplace(finding.rule, ruleIndex.size());
      if (added) {
        const auto text = ruleTexts().find(finding.rule);
        rules.push_back({{"id", finding.rule},
                         {"shortDescription",
                          {{"text", text == ruleTexts().end()
                                        ? "The plan does not compute what the model computes (" +
                                              finding.rule + ")"
                                        : text->second}}}});
      }
      findings.push_back({{"ruleId", finding.rule},
                          {"ruleIndex", rule->second},
                          {"level", levelName(finding.level)},
                          {"message", {{"text", finding.message}}},
                          {"locations", Json::array({locationOf(finding)})}});
    }
    if (result.report)
      artifacts.push_back({{"location", {{"uri", uriOf(result.report->plan)}}},
                           {"properties", {{"verdict", toString(result.report->verdict)}}}});
  }
  const Json log = {
      {"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
      {"version", "2.1.0"},
      {"runs", Json::array({{{"tool",
                              {{"driver",
                                {{"name", "shardproof"},
                                 {"semanticVersion", kVersion},
                                 {"rules", std::move(rules)}}}}},
                             {"invocations", Json::array({{{"executionSuccessful", !internal},
                                                           {"exitCode", exitCode}}})},
                             {"artifacts", std::move(artifacts)},
                             {"results", std::move(findings)}}})}};
  return log.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace shardproof
