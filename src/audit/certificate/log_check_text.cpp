// SPDX-License-Identifier: Apache-2.0
#include "certificate/log_check_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace shardproof {

namespace {

constexpr int kVersion = 1;

const char* words(SecondMethod method) {
  switch (method) {
    case SecondMethod::kNormalForm:
      return "normal forms";
    case SecondMethod::kExpandedForm:
      return "expanded forms";
    case SecondMethod::kZ3:
      return "Z3";
    case SecondMethod::kCvc5:
      return "cvc5";
  }
  return "";
}

const char* words(Method method) {
  switch (method) {
    case Method::kNormalForm:
      return "normal forms";
    case Method::kPolynomial:
      return "expanded forms";
    case Method::kSolver:
      return "Z3";
    default:
      return "nothing";
  }
}

std::string evidenceOf(const ClassEvidence& e) {
  std::string text;
  if (e.provedBy) text = std::string("again by ") + words(*e.provedBy);
  if (e.executed.agreed > 0)
    text += std::string(text.empty() ? "" : ", ") + "executed at full size";
  return text.empty() ? "no independent evidence" : text;
}

}  // namespace

std::string evidenceText(const ProofLog& log, const CheckLogResult& result) {
  if (result.evidence.empty()) return {};
  std::map<std::pair<std::string, std::string>, std::size_t> counts;
  for (const ClassEvidence& e : result.evidence)
    ++counts[{words(log.classes[e.classId].method), evidenceOf(e)}];
  std::vector<std::pair<std::pair<std::string, std::string>, std::size_t>> rows(counts.begin(),
                                                                                counts.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  const std::size_t width = std::to_string(rows.front().second).size();
  std::string text = "Independent evidence: " + std::to_string(result.evidence.size()) +
                     (result.evidence.size() == 1 ? " proof" : " proofs") + "\n";
  for (const auto& [row, n] : rows) {
    const std::string number = std::to_string(n);
    text += "  " + std::string(width - number.size(), ' ') + number + "  proved by " + row.first +
            "; " + row.second + "\n";
  }
  return text;
}

std::string logCheckJson(const ProofLog& log, const CheckLogResult& result) {
  nlohmann::ordered_json j;
  j["format"] = "shardproof-log-check";
  j["version"] = kVersion;
  j["log"] = log.file;
  j["holds"] = result.holds();
  j["interrupted"] = result.interrupted;
  j["lemmas"] = result.lemmas;
  j["proofs"] = result.proofs;
  j["proved_again"] = result.provedAgain;
  j["approved_differences"] = nlohmann::ordered_json::array();
  for (const EntryId e : result.approved)
    j["approved_differences"].push_back(
        {{"entry", "/lineage/" + std::to_string(e)}, {"tensor", log.lineage[e].tensor}});
  j["findings"] = nlohmann::ordered_json::array();
  for (const auto& f : result.findings)
    j["findings"].push_back({{"place", f.place}, {"why", f.why}, {"limits", f.limits}});
  j["classes"] = nlohmann::ordered_json::array();
  for (const ClassEvidence& e : result.evidence) {
    nlohmann::ordered_json c;
    c["class"] = e.classId;
    c["method"] = toString(log.classes[e.classId].method);
    c["evidence"] = e.any();
    c["proved_again_by"] =
        e.provedBy ? nlohmann::ordered_json(toString(*e.provedBy)) : nlohmann::ordered_json();
    c["failed"] = nlohmann::ordered_json::array();
    for (const auto& [method, why] : e.failed)
      c["failed"].push_back({{"method", toString(method)}, {"why", why}});
    if (e.attempted) {
      auto& x = c["execution"];
      x["entry"] = "/lineage/" + std::to_string(e.entry);
      x["positions"] = e.executed.asked;
      x["agreed"] = e.executed.agreed;
      x["agreed_in_prime_field"] = e.executed.agreedInField;
      x["reason"] = e.executed.reason;
      if (e.executed.difference) {
        const auto value = [](double v) {
          return std::isfinite(v) ? nlohmann::ordered_json(v) : nlohmann::ordered_json();
        };
        x["differs_at"] = e.executed.difference->element;
        x["model"] = value(e.executed.difference->logical);
        x["plan"] = value(e.executed.difference->parallel);
      }
    }
    j["classes"].push_back(std::move(c));
  }
  return j.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace shardproof
