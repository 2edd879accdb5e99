// SPDX-License-Identifier: Apache-2.0
#include "obligations/written_obligation.h"

#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "obligations/smtlib.h"
#include "prover/obligation.h"
#include "shardproof/error.h"

namespace shardproof {

WrittenObligation writeObligation(const Stage& stage, const ObligationNotes& notes,
                                  std::size_t memoryMegabytes, std::size_t mostBytes) {
  WrittenObligation written;
  try {
    std::map<std::string, double> seconds;
    const Obligation o = buildObligation(stage, ReductionOptions{}, Positions::kTractable,
                                         mostTerms(memoryMegabytes), seconds);
    const SmtQuery query = buildQuery(o.terms, o.equations());
    written.logic = logicOf(query);
    written.conclusive = o.conclusive && o.laws() == Laws::kAll;
    written.pairs = o.pairs.size();
    for (const Obligation::Pair& p : o.pairs) written.identical += p.logical == p.parallel;
    for (const SmtQuery::Symbol& s : query.symbols) {
      if (!s.lawless) written.functions.push_back(s.name);
    }
    // A refutation is an assignment of the true functions, which satisfy every fact; a proof by
    // normal forms holds for all functions with the laws that these know. So `unsat` is known only
    // where the script says all of them.
    written.status = notes.refuted && !o.reduced.reducesAbsolute ? "sat"
                     : notes.proved && written.functions.empty() ? "unsat"
                                                                 : "unknown";
    SmtLibNotes script;
    script.head = notes.head;
    script.head.push_back(
        written.conclusive
            ? "unsat: the equation holds at the full size of the tensors, wherever both sides are "
              "defined"
            : "unsat: the equation holds for the positions below. That it holds at full size does "
              "not follow: sums have more summands there, or fewer positions are kept apart than a "
              "solver's proof needs");
    if (!written.functions.empty()) {
      std::string names;
      for (const std::string& f : written.functions) names += " " + f;
      script.head.push_back(
          "sat need not mean that the two sides differ: more holds for these functions than is "
          "said here:" +
          names);
    }
    if (o.droppedAssumption)
      script.head.push_back(
          "sat need not mean that the two sides differ: assumed lineage that is over-determined "
          "was left out");
    script.status = written.status;
    script.variable = [&](std::uint32_t v) {
      return elementName(stage, o.reduced, o.free[v].tensor, o.free[v].index);
    };
    script.claim = [&](std::size_t i) {
      return elementName(stage, o.reduced, stage.claims[o.pairs[i].claim].logical,
                         o.pairs[i].logicalIndex);
    };
    written.text = smtLibText(query, script, mostBytes);
  } catch (const Unsupported& error) {
    written.missing = error.what();
  } catch (const NeedsRefinement& error) {
    written.missing = error.what();
  }
  return written;
}

std::string serialize(const WrittenObligation& w) {
  const nlohmann::json j{w.text,       w.missing, w.status,    w.logic,
                         w.conclusive, w.pairs,   w.identical, w.functions};
  const auto bytes = nlohmann::json::to_cbor(j);
  return {bytes.begin(), bytes.end()};
}

WrittenObligation deserializeObligation(const std::string& text) {
  const nlohmann::json j = nlohmann::json::from_cbor(text);
  WrittenObligation w;
  w.text = j.at(0).get<std::string>();
  w.missing = j.at(1).get<std::string>();
  w.status = j.at(2).get<std::string>();
  w.logic = j.at(3).get<std::string>();
  w.conclusive = j.at(4).get<bool>();
  w.pairs = j.at(5).get<std::size_t>();
  w.identical = j.at(6).get<std::size_t>();
  w.functions = j.at(7).get<std::vector<std::string>>();
  return w;
}

}  // namespace shardproof
