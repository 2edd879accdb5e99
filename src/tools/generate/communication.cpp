// SPDX-License-Identifier: Apache-2.0
// The calls of an architecture that only move data: communication in the plan, nothing in the
// model.
#include "generate/builder.h"

namespace shardproof::generate {

// `node` makes `to` from `from`; `dim`: its attribute, -1: none.
ValueId Builder::moved(Kind kind, ValueId from, Value to, Node node, int dim) {
  to.gradient = to.localGradient = {};
  if (to.local != at(from).local) {
    declareLocal(chunk_, to.local, to.logical, to.shape, to.layout, true).dtype = to.dtype;
    if (dim >= 0) node.attributes.insert(node.attributes.begin(), attribute("dim", dim));
    forwardNodes(chunk_).push_back(std::move(node));
    cutPoint(chunk_, to.local, false);
  }
  const ValueId out = addValue(std::move(to));
  record_.push_back({.kind = kind,
                     .in = {from},
                     .out = {out},
                     .location = location_,
                     .chunk = chunk_,
                     .layer = layer_});
  return out;
}

ValueId Builder::enterTp(ValueId value) {
  if (options_.tp == 1) return value;
  Value entered = at(value);
  const int dim = entered.layout.tp;
  entered.gradientSumTp = true;
  if (dim >= 0) {
    entered.layout.tp = -1;
    entered.local += ".full";
  }
  Node node = communication("all_gather", at(value).local, entered.local, {"tp"});
  return moved(Kind::kEnterTp, value, std::move(entered), std::move(node), dim);
}

ValueId Builder::reduceOverTp(ValueId value, bool whole) {
  if (options_.tp == 1) return value;
  const bool scatter = options_.sequenceParallel && !whole;
  Value reduced = at(value);
  reduced.layout.sumTp = false;
  reduced.local = reduced.logical;
  if (scatter) reduced.layout.tp = 1;
  Node node = communication(scatter ? "reduce_scatter" : "all_reduce", at(value).local,
                            reduced.local, {"tp"});
  return moved(Kind::kReduceOverTp, value, std::move(reduced), std::move(node), scatter ? 1 : -1);
}

ValueId Builder::enterEp(ValueId value) {
  if (options_.epRanks() == 1) return value;
  Value entered = at(value);
  entered.layout.gathered = true;
  entered.gradientSumEp = true;
  entered.local = localName(entered.logical, entered.layout);
  Node node = communication("all_gather", at(value).local, entered.local, {"ep"});
  const int dim = entered.layout.batch;
  return moved(Kind::kEnterEp, value, std::move(entered), std::move(node), dim);
}

ValueId Builder::reduceOverEp(ValueId value) {
  if (options_.epRanks() == 1) return value;
  Value reduced = at(value);
  reduced.layout.gathered = reduced.layout.sumEp = false;
  reduced.local = localName(reduced.logical, reduced.layout);
  Node node = communication("reduce_scatter", at(value).local, reduced.local, {"ep"});
  const int dim = reduced.layout.batch;
  return moved(Kind::kReduceOverEp, value, std::move(reduced), std::move(node), dim);
}

ValueId Builder::scatterSequence(ValueId value) {
  if (!options_.sequenceParallel) return value;
  Value piece = at(value);
  piece.layout.tp = 1;
  piece.local += ".piece";
  Node node{.op = "chunk",
            .in = {at(value).local},
            .out = {piece.local},
            .attributes = {attribute("parts", options_.tp), attributePerTp("index", 0, 1)},
            .location = location_};
  return moved(Kind::kScatter, value, std::move(piece), std::move(node), 1);
}

ValueId Builder::gatherSequence(ValueId value) {
  if (!options_.sequenceParallel) return value;
  Value whole = at(value);
  whole.layout.tp = -1;
  whole.local += ".whole";
  Node node = communication("all_gather", at(value).local, whole.local, {"tp"});
  return moved(Kind::kGather, value, std::move(whole), std::move(node), 1);
}

ValueId Builder::toChunk(ValueId value, int chunk) {
  const int from = at(value).chunk;
  if (from == chunk) return value;
  Value there = at(value);
  there.gradient = there.localGradient = {};
  there.chunk = chunk;
  Node send = communication("send", there.local, "", {}),
       receive = communication("recv", "", there.local, {});
  send.comm = receive.comm = "forward." + there.local;
  send.peerField = "to";
  send.peer = rankOf(chunk);
  receive.peerField = "from";
  receive.peer = rankOf(from);
  declareLocal(chunk, there.local, there.logical, there.shape, there.layout, true);
  forwardNodes(from).push_back(std::move(send));
  forwardNodes(chunk).push_back(std::move(receive));
  cutPoint(chunk, there.local, true);
  const ValueId out = addValue(std::move(there));
  record_.push_back(
      {.kind = Kind::kMove, .in = {value}, .out = {out}, .location = location_, .chunk = chunk});
  return out;
}

void Builder::markBoundary(ValueId v) {
  at(v).boundary = true;
  if (options_.cutPoints == "layers") cutPoint(at(v).chunk, at(v).local, true);
}

}  // namespace shardproof::generate
