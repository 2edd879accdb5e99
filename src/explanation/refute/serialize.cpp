// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include <nlohmann/json.hpp>

#include "refute/stage_outcome.h"

namespace shardproof {

using nlohmann::json;

std::string serialize(const StageOutcome& outcome) {
  json j;
  if (outcome.proof) j["proof"] = outcome.proof->bytes();
  j["refuted_by"] = static_cast<int>(outcome.refutedBy);
  j["reason"] = outcome.reason;
  j["claim"] = outcome.claim;
  j["differing"] = json::array();
  for (const DifferingClaim& d : outcome.differing)
    j["differing"].push_back({d.entry.value, d.shard, d.rank.value});
  j["needs_refinement"] = outcome.needsRefinement;
  j["shortened_mask"] = outcome.shortenedMask;
  j["under_coarse_masks"] = outcome.underCoarseMasks;
  j["seconds"] = outcome.seconds;
  for (const ReducedShape& s : outcome.reducedShapes)
    j["shapes"].push_back({s.tensor, s.full, s.reduced});
  if (outcome.counterexample) {
    const Counterexample& c = *outcome.counterexample;
    json e;
    for (const Assignment& a : c.assignment) e["assignment"].push_back({a.element, a.value});
    e["omitted"] = c.omitted;
    e["element"] = c.element;
    // JSON has no infinities; the value's own bytes do not lose anything.
    e["logical"] = std::bit_cast<std::uint64_t>(c.logical);
    e["parallel"] = std::bit_cast<std::uint64_t>(c.parallel);
    j["counterexample"] = std::move(e);
  }
  const auto bytes = json::to_cbor(j);
  return {bytes.begin(), bytes.end()};
}

StageOutcome deserialize(const std::string& text) {
  const json j = json::from_cbor(text);
  StageOutcome outcome;
  if (j.contains("proof")) outcome.proof = Proof::fromBytes(j["proof"].get<std::string>());
  outcome.refutedBy = static_cast<Method>(j.at("refuted_by").get<int>());
  outcome.reason = j.at("reason").get<std::string>();
  outcome.claim = j.at("claim").get<std::int32_t>();
  for (const json& d : j.at("differing"))
    outcome.differing.push_back({EntryId(d[0].get<std::int32_t>()), d[1].get<std::int32_t>(),
                                 Rank(d[2].get<std::int32_t>())});
  outcome.needsRefinement = j.at("needs_refinement").get<bool>();
  outcome.shortenedMask = j.at("shortened_mask").get<bool>();
  outcome.underCoarseMasks = j.at("under_coarse_masks").get<bool>();
  outcome.seconds = j.at("seconds").get<std::map<std::string, double>>();
  if (j.contains("shapes")) {
    for (const json& s : j["shapes"])
      outcome.reducedShapes.push_back(
          {s[0].get<std::string>(), s[1].get<Shape>(), s[2].get<Shape>()});
  }
  if (j.contains("counterexample")) {
    const json& e = j["counterexample"];
    Counterexample c;
    if (e.contains("assignment")) {
      for (const json& a : e["assignment"])
        c.assignment.push_back({a[0].get<std::string>(), a[1].get<double>()});
    }
    c.omitted = e.at("omitted").get<std::size_t>();
    c.element = e.at("element").get<std::string>();
    c.logical = std::bit_cast<double>(e.at("logical").get<std::uint64_t>());
    c.parallel = std::bit_cast<double>(e.at("parallel").get<std::uint64_t>());
    outcome.counterexample = std::move(c);
  }
  return outcome;
}

}  // namespace shardproof
