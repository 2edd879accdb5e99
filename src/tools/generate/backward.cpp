// SPDX-License-Identifier: Apache-2.0
// Walks the record of the forward pass from its end and emits the gradients.
#include "generate/builder.h"

#include <algorithm>

namespace shardproof::generate {

std::string Builder::saved(int chunk, const std::string& local) {
  const auto it = saved_.find({chunk, local});
  if (it != saved_.end()) return it->second;
  // A parameter that was gathered for the forward pass was freed after it: gathered again.
  const Tensor* t = program(chunk).tensors.find(local);
  const auto shard = [&] { return program(chunk).tensors.find(local + ".shard"); };
  if (options_.zero != 3 || t == nullptr || !t->kind.empty() || t->logical != local ||
      shard() == nullptr || shard()->kind != "parameter")
    return local;
  const std::string again = local + ".again";
  const Tensor& logical = out_.tensors.at(local);
  const Layout layout = t->layout;
  declareLocal(chunk, again, local, logical.shape, layout, true);
  Node node = communication("all_gather", local + ".shard", again, dataAxes(layout));
  node.attributes = {attribute("dim", shard()->layout.dp)};
  backwardNodes(chunk).push_back(std::move(node));
  cutPoint(chunk, again, false);
  saved_[{chunk, local}] = again;
  return again;
}

void Builder::recompute(Layer& layer) {
  layer.recomputed = true;
  std::map<std::string, std::string> renamed;
  const std::vector<Node>& forward = forwardNodes(layer.chunk);
  for (std::size_t i = layer.begin; i < layer.end; ++i) {
    Node node = forward[i];
    for (std::string& name : node.in)
      if (const auto it = renamed.find(name); it != renamed.end()) name = it->second;
    for (std::string& name : node.out) {
      if (name.empty()) continue;
      if (const auto it = renamed.find(name); it != renamed.end()) {  // another rank's
        name = it->second;
        continue;
      }
      Tensor copy = program(layer.chunk).tensors.at(name);
      copy.name += ".again";
      renamed[name] = copy.name;
      saved_[{layer.chunk, name}] = copy.name;
      name = copy.name;
      program(layer.chunk).tensors.add(std::move(copy));
      cutPoint(layer.chunk, name, false);
    }
    if (node.op == "dropout") claim(layer.chunk, node.in[0]);
    if (!node.comm.empty()) node.comm += ".again";
    backwardNodes(layer.chunk).push_back(std::move(node));
  }
}

Layout Builder::gradientLayout(const Value& value) const {
  Layout layout = value.layout;
  // Each rank that holds a copy of a piece uses it for itself.
  layout.sumTp = value.gradientSumTp || (layout.copies > 1 && layout.tpInner < 0);
  layout.sumEp = value.gradientSumEp;
  layout.sumCp = value.gradientSumCp;
  layout.sumDp = layout.sumMb = layout.batch < 0;
  return layout;
}

std::string Builder::localName(const std::string& logical, const Layout& layout) const {
  return logical + (layout.sumTp ? ".part" : "") + (layout.gathered ? ".ep" : "") +
         (layout.sumCp ? ".cp" : "");
}

std::string Builder::localGradientName(const std::string& logical, const Layout& layout) const {
  return layout.sumMb ? logical + ".mb" : localName(logical, layout);
}

void Builder::addGradient(ValueId to, const std::string& logical, const std::string& local) {
  Value& v = at(to);
  if (v.gradient.empty()) {
    v.gradient = logical;
    v.localGradient = local;
    return;
  }
  const std::string sum = fresh(v.logical + ".grad");
  const Layout layout = gradientLayout(v);
  const std::string localSum = localGradientName(sum, layout);
  declareLogical(sum, v.shape);
  declareLocal(v.chunk, localSum, sum, v.shape, layout, true);
  model("add", {v.gradient, logical}, {sum}, {}, location_);
  backwardNodes(v.chunk).push_back(
      {.op = "add", .in = {v.localGradient, local}, .out = {localSum}, .location = location_});
  cutPoint(v.chunk, localSum, v.boundary);
  v.gradient = sum;
  v.localGradient = localSum;
}

void Builder::backward() {
  for (const Record& record : record_) {
    if (record.kind != Kind::kLoss) continue;
    Value& loss = at(record.out[0]);
    const std::string weight = loss.logical + ".grad";
    for (Tensors* tensors : {&out_.tensors, &program(loss.chunk).tensors})
      tensors->add({.name = weight, .shape = {}, .kind = "constant", .value = record.weight});
    loss.gradient = loss.localGradient = weight;
  }
  for (std::size_t i = record_.size(); i-- > 0;) {
    const Record record = record_[i];
    const bool wanted = std::any_of(record.out.begin(), record.out.end(),
                                    [&](ValueId v) { return !at(v).gradient.empty(); });
    if (!wanted) continue;
    location_ = record.location;
    if (options_.recompute && record.layer >= 0 &&
        !layers_[static_cast<std::size_t>(record.layer)].recomputed)
      recompute(layers_[static_cast<std::size_t>(record.layer)]);
    switch (record.kind) {
      case Kind::kOperator:
        backwardOperator(record);
        break;
      case Kind::kLoss:
        backwardLoss(record);
        break;
      case Kind::kEnterTp:
      case Kind::kReduceOverTp:
      case Kind::kEnterEp:
      case Kind::kReduceOverEp:
      case Kind::kEnterCp:
      case Kind::kScatter:
      case Kind::kGather:
        backwardCommunication(record);
        break;
      case Kind::kRingAttention:
        backwardRingAttention(record);
        break;
      case Kind::kMove:
        backwardMove(record);
        break;
    }
  }
}

void Builder::backwardOperator(const Record& record) {
  std::vector<std::string> logicalIn, localIn, logicalOut, localOut;
  for (const ValueId v : record.out) {
    logicalIn.push_back(at(v).gradient);
    localIn.push_back(at(v).localGradient);
  }
  for (const ValueId v : record.in) {
    logicalIn.push_back(at(v).logical);
    localIn.push_back(saved(record.chunk, at(v).local));
  }
  for (const ValueId v : record.in) {
    logicalOut.emplace_back();
    localOut.emplace_back();
    if (!at(v).needsGradient) continue;
    const Layout layout = gradientLayout(at(v));
    logicalOut.back() = fresh(at(v).logical + ".grad");
    localOut.back() = localGradientName(logicalOut.back(), layout);
    declareLogical(logicalOut.back(), at(v).shape);
    declareLocal(record.chunk, localOut.back(), logicalOut.back(), at(v).shape, layout, true);
  }
  const Value& first = at(record.out[0]);
  model(record.op + "_backward", logicalIn, logicalOut,
        logicalAttributes(record.attributes, first.shape, options_), location_);
  backwardNodes(record.chunk)
      .push_back({.op = record.op + "_backward",
                  .in = localIn,
                  .out = localOut,
                  .attributes = withShape(record.attributes, localShape(first.shape, first.layout)),
                  .location = location_});
  for (std::size_t i = 0; i < record.in.size(); ++i) {
    if (localOut[i].empty()) continue;
    // The gradient of a shared key-value head is a sum over its ranks that the model has formed
    // before it goes on; a proof through a whole layer would have to multiply all of it out.
    cutPoint(record.chunk, localOut[i],
             at(record.in[i]).layout.copies > 1 || first.layout.copies > 1 ||
                 at(record.in[i]).gradientKept);
    addGradient(record.in[i], logicalOut[i], localOut[i]);
  }
}

void Builder::backwardLoss(const Record& record) {
  const Value& loss = at(record.out[0]);
  const std::string own = loss.logical + ".microbatch", ownGradient = own + ".grad";
  declareLocal(record.chunk, ownGradient, "", {}, {}, true);
  backwardNodes(record.chunk)
      .push_back({.op = "div_backward",
                  .in = {loss.localGradient, saved(record.chunk, own)},
                  .out = {ownGradient},
                  .attributes = {attribute("scalar", means())},
                  .location = location_});
  if (cutVocabulary(record.in)) {
    backwardCutCrossEntropy(record, ownGradient);
    return;
  }
  // From here on as for any operator, except that the two sides start from different gradients.
  at(record.out[0]).localGradient = ownGradient;
  backwardOperator(record);
}

void Builder::backwardCommunication(const Record& record) {
  const Value from = at(record.out[0]), to = at(record.in[0]);
  const Layout layout = gradientLayout(to), arrived = gradientLayout(from);
  std::string op, name = localGradientName(from.gradient, layout);
  int dim = -1;
  std::vector<Attribute> attributes;
  if (record.kind == Kind::kEnterCp) {
    op = "reduce_scatter";
    dim = layout.cp;
  } else if (record.kind == Kind::kEnterTp) {
    op = layout.tp >= 0 ? "reduce_scatter" : "all_reduce";
    dim = layout.tp;
  } else if (record.kind == Kind::kEnterEp || record.kind == Kind::kReduceOverEp) {
    op = record.kind == Kind::kEnterEp ? "reduce_scatter" : "all_gather";
    dim = layout.batch;
  } else if (record.kind == Kind::kGather) {
    op = "chunk";  // every rank has the whole gradient
    dim = layout.tp;
    name += ".piece";
    attributes = {attribute("parts", options_.tp), attributePerTp("index", 0, 1)};
  } else if (arrived.tp >= 0) {
    op = "all_gather";
    dim = arrived.tp;
    name += ".full";
  }
  if (op.empty()) {  // the gradient of a sum over tp goes to every rank as it is
    addGradient(record.in[0], from.gradient, from.localGradient);
    return;
  }
  declareLocal(record.chunk, name, from.gradient, to.shape, layout, true);
  std::string arrivedName = from.localGradient;
  if (record.kind == Kind::kEnterCp && options_.cpBalanced) {
    arrivedName += ".by_rank";
    declareLocal(record.chunk, arrivedName, "", from.shape, arrived, true);
    std::vector<Node>& nodes = backwardNodes(record.chunk);
    Node join{.op = "cat",
              .in = reordered(record.chunk, nodes, from.localGradient, dim, false),
              .out = {arrivedName},
              .attributes = {attribute("dim", dim)},
              .location = location_};
    nodes.push_back(std::move(join));
  }
  const bool overEp = layout.gathered != arrived.gathered;
  const char* const axis = record.kind == Kind::kEnterCp ? "cp" : overEp ? "ep" : "tp";
  Node node = communication(op, arrivedName, name, {axis});
  if (op == "chunk") {
    node.comm.clear();
    node.group.clear();
  }
  if (dim >= 0) attributes.insert(attributes.begin(), attribute("dim", dim));
  node.attributes = std::move(attributes);
  backwardNodes(record.chunk).push_back(std::move(node));
  cutPoint(record.chunk, name, to.gradientKept);
  addGradient(record.in[0], from.gradient, name);
}

void Builder::backwardMove(const Record& record) {
  const Value from = at(record.out[0]), to = at(record.in[0]);
  const std::string name = from.localGradient;
  Node send = communication("send", name, "", {}), receive = communication("recv", "", name, {});
  send.comm = receive.comm = "backward." + name;
  send.peerField = "to";
  send.peer = rankOf(to.chunk);
  receive.peerField = "from";
  receive.peer = rankOf(from.chunk);
  declareLocal(to.chunk, name, from.gradient, to.shape, gradientLayout(to), true);
  backwardNodes(from.chunk).push_back(std::move(send));
  backwardNodes(to.chunk).push_back(std::move(receive));
  cutPoint(to.chunk, name, true);
  addGradient(record.in[0], from.gradient, name);
}

}  // namespace shardproof::generate
