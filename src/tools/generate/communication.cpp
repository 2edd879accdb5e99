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

// With --cp-balanced a rank has chunks r and 2 cp - 1 - r of 2 cp. The chunks of `from`, which has
// all of them, in the order of the sequence where `from` has them by rank, or the other way round.
std::vector<std::string> Builder::reordered(int chunk, std::vector<Node>& nodes,
                                            const std::string& from, int dim, bool toSequence) {
  const int count = static_cast<int>(2 * options_.cp);
  Tensors& tensors = program(chunk).tensors;
  const Tensor whole = tensors.at(from);
  std::vector<std::string> pieces(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const int inSequence = i % 2 == 0 ? i / 2 : count - 1 - i / 2;  // where the i-th by rank is
    Tensor piece{.name = from + ".chunk" + std::to_string(i),
                 .shape = whole.shape,
                 .dtype = whole.dtype,
                 .perMicrobatch = whole.perMicrobatch};
    piece.shape.at(static_cast<std::size_t>(dim)) /= count;
    nodes.push_back({.op = "chunk",
                     .in = {from},
                     .out = {piece.name},
                     .attributes = {attribute("dim", dim), attribute("parts", count),
                                    attribute("index", toSequence ? i : inSequence)},
                     .location = location_});
    pieces.at(static_cast<std::size_t>(toSequence ? inSequence : i)) = piece.name;
    tensors.add(std::move(piece));
  }
  return pieces;
}

ValueId Builder::enterCp(ValueId value) {
  if (options_.cp == 1) return value;
  Value entered = at(value);
  const int dim = entered.layout.cp;
  entered.layout.cp = -1;
  entered.gradientSumCp = true;
  entered.local += ".gathered";
  const std::string gathered = entered.local + (options_.cpBalanced ? ".by_rank" : "");
  Node gather = communication("all_gather", at(value).local, gathered, {"cp"});
  if (!options_.cpBalanced)
    return moved(Kind::kEnterCp, value, std::move(entered), std::move(gather), dim);
  declareLocal(chunk_, gathered, "", entered.shape, entered.layout, true);
  gather.attributes = {attribute("dim", dim)};
  std::vector<Node>& nodes = forwardNodes(chunk_);
  nodes.push_back(std::move(gather));
  Node join{.op = "cat",
            .in = reordered(chunk_, nodes, gathered, dim, true),
            .out = {entered.local},
            .location = location_};
  return moved(Kind::kEnterCp, value, std::move(entered), std::move(join), dim);
}

// The model's mask is over all positions; each rank masks its own queries and keys only, whose
// order is that of the sequence.
ValueId Builder::ringMask(ValueId tokens) {
  const std::int64_t all = shape(tokens).back();
  const std::string name = "mask", local = "mask.chunk" + std::to_string(chunk_);
  if (out_.tensors.find(name) == nullptr) {
    declareLogical(name, {1, 1, all, all});
    model("create_mask", {at(tokens).logical}, {name}, {}, location_);
  }
  const std::int64_t own = all / options_.cp;
  program(chunk_).tensors.add({.name = local, .shape = {1, 1, own, own}, .perMicrobatch = true});
  forwardNodes(chunk_).push_back(
      {.op = "create_mask", .in = {at(tokens).local}, .out = {local}, .location = location_});
  return addValue({.logical = name, .local = local, .shape = {1, 1, all, all}, .chunk = chunk_});
}

ValueId Builder::ownSequence(ValueId value, int dim) {
  if (options_.cp == 1) return value;
  const std::string whole = at(value).local;
  Value own = at(value);
  own.layout.cp = dim;
  own.local += ".own";
  declareLocal(chunk_, own.local, own.logical, own.shape, own.layout, own.perMicrobatch).dtype =
      own.dtype;
  const auto cut = [&](std::int64_t parts, std::int64_t first, std::int64_t perCp,
                       const std::string& to) {
    forwardNodes(chunk_).push_back({.op = "chunk",
                                    .in = {whole},
                                    .out = {to},
                                    .attributes = {attribute("dim", dim), attribute("parts", parts),
                                                   attributePerCp("index", first, perCp)},
                                    .location = location_});
  };
  if (options_.cpBalanced) {
    const std::int64_t count = 2 * options_.cp;
    const std::string first = own.local + ".first", last = own.local + ".last";
    for (const std::string& name : {first, last}) {
      Tensor half{.name = name,
                  .shape = localShape(own.shape, own.layout),
                  .dtype = own.dtype,
                  .perMicrobatch = own.perMicrobatch};
      half.shape.at(static_cast<std::size_t>(dim)) /= 2;
      program(chunk_).tensors.add(std::move(half));
    }
    cut(count, 0, 1, first);
    cut(count, count - 1, -1, last);
    forwardNodes(chunk_).push_back({.op = "cat",
                                    .in = {first, last},
                                    .out = {own.local},
                                    .attributes = {attribute("dim", dim)},
                                    .location = location_});
  } else {
    cut(options_.cp, 0, 1, own.local);
  }
  cutPoint(chunk_, own.local, false);
  return addValue(std::move(own));
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
