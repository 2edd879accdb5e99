#include "generate/builder.h"

#include <algorithm>
#include <utility>

namespace shardproof::generate {

Attribute attribute(std::string key, std::int64_t value) { return {.key = std::move(key), .json = std::to_string(value)}; }
Attribute attributeText(std::string key, const std::string& value) { return {.key = std::move(key), .json = '"' + value + '"'}; }
Attribute attributeNumber(std::string key, std::string decimal) { return {.key = std::move(key), .json = std::move(decimal)}; }
Attribute attributeFlag(std::string key, bool value) { return {.key = std::move(key), .json = value ? "true" : "false"}; }
Attribute attributePerTp(std::string key, std::int64_t first, std::int64_t perTp) {
  return {.key = std::move(key), .json = std::to_string(first), .perTp = perTp};
}
Attribute attributeShape(std::string key) { return {.key = std::move(key), .json = {}, .shape = true}; }
Attribute attributeIntegers(std::string key, const std::vector<std::int64_t>& values) {
  std::string json = "[";
  for (const std::int64_t v : values) json += (json.size() > 1 ? ", " : "") + std::to_string(v);
  return {.key = std::move(key), .json = json + "]"};
}

Tensor& Tensors::add(Tensor tensor) {
  if (!index_.emplace(tensor.name, list_.size()).second) throw std::logic_error("the generator made two tensors called '" + tensor.name + "'");
  list_.push_back(std::move(tensor));
  return list_.back();
}
Tensor* Tensors::find(const std::string& name) {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &list_[it->second];
}

namespace {

std::vector<Attribute> withShape(std::vector<Attribute> attributes, const Shape& shape) {
  for (Attribute& a : attributes)
    if (a.shape) a = attributeIntegers(a.key, shape);
  return attributes;
}

// The model's window covers what all tp ranks' windows cover together.
std::vector<Attribute> logicalAttributes(std::vector<Attribute> attributes, const Shape& shape, std::int64_t tp) {
  for (Attribute& a : attributes) {
    if (a.perTp == 0) continue;
    if (a.key == "stop") a.json = std::to_string(std::stoll(a.json) + a.perTp * (tp - 1));
    a.perTp = 0;
  }
  return withShape(std::move(attributes), shape);
}

}  // namespace

Builder::Builder(const Options& options) : options_(options) { out_.programs.resize(static_cast<std::size_t>(options.pp)); }

void Builder::beginLayer() {
  layer_ = static_cast<int>(layers_.size());
  layers_.push_back({chunk_, forwardNodes(chunk_).size(), 0});
}
void Builder::endLayer() {
  layers_.back().end = forwardNodes(chunk_).size();
  layer_ = -1;
}

Shape Builder::localShape(const Shape& shape, const Layout& layout) const {
  Shape local = shape;
  const auto cut = [&](int dim, std::int64_t pieces) {
    if (dim < 0) return;
    std::int64_t& n = local.at(static_cast<std::size_t>(dim));
    if (n % pieces != 0) throw OptionError("a dimension of size " + std::to_string(n) + " cannot be cut into " + std::to_string(pieces) + " equal pieces");
    n /= pieces;
  };
  cut(layout.batch, options_.splits());
  cut(layout.tp, options_.tp);
  cut(layout.dp, options_.dp);
  return local;
}

std::string Builder::fresh(const std::string& name) {
  const int n = ++used_[name];
  return n == 1 ? name : name + "." + std::to_string(n);
}

ValueId Builder::addValue(Value value) {
  values_.push_back(std::move(value));
  return static_cast<ValueId>(values_.size() - 1);
}

void Builder::declareLogical(const std::string& name, const Shape& shape, const std::string& gradOf) {
  out_.tensors.add({.name = name, .shape = shape, .gradOf = gradOf});
}

Tensor& Builder::declareLocal(int chunk, const std::string& name, const std::string& logical, const Shape& shape, const Layout& layout, bool perMicrobatch) {
  return program(chunk).tensors.add(
      {.name = name, .shape = localShape(shape, layout), .perMicrobatch = perMicrobatch, .logical = logical, .layout = layout});
}

void Builder::checkpoint(int chunk, const std::string& local, bool boundary) {
  if (options_.checkpoints == "none" || (options_.checkpoints == "layers" && !boundary)) return;
  const Tensor& t = program(chunk).tensors.at(local);
  if (!t.logical.empty()) out_.lineage.push_back({t.logical, "checkpoint", {{local, rankOf(chunk)}}});
}

void Builder::model(const std::string& op, std::vector<std::string> in, std::vector<std::string> out, std::vector<Attribute> attributes,
                    const std::string& location) {
  out_.nodes.push_back({.op = op, .in = std::move(in), .out = std::move(out), .attributes = std::move(attributes), .location = location});
}

void Builder::step(int chunk, const std::string& op, std::vector<std::string> in, std::vector<std::string> out, std::vector<Attribute> attributes,
                   const std::string& location) {
  program(chunk).step.push_back(
      {.op = op, .in = std::move(in), .out = std::move(out), .attributes = std::move(attributes), .location = location, .runs = Runs::kOnce});
}

Node Builder::communication(const std::string& op, const std::string& in, const std::string& out, std::vector<std::string> group) {
  Node node{.op = op, .location = location_, .group = std::move(group)};
  if (!in.empty()) node.in.push_back(in);
  if (!out.empty()) node.out.push_back(out);
  // One id for each place in the program; ranks of other stages never join the group, but a reader of the plan should see which is which.
  node.comm = op + "." + (out.empty() ? in : out);
  return node;
}

// ---------------------------------------------------------------- forward

ValueId Builder::input(const std::string& name, const Shape& shape, const std::string& dtype, const Layout& layout) {
  if (out_.tensors.find(name) == nullptr) out_.tensors.add({.name = name, .shape = shape, .kind = "input", .dtype = dtype});
  const bool perMicrobatch = layout.batch >= 0;
  if (program(chunk_).tensors.find(name) == nullptr) {
    Tensor& t = declareLocal(chunk_, name, name, shape, layout, perMicrobatch);
    t.kind = "input";
    t.dtype = dtype;
    const auto [it, isNew] = inputEntries_.emplace(name, out_.lineage.size());
    if (isNew) out_.lineage.push_back({name, "input", {}});
    out_.lineage[it->second].pieces.push_back({name, rankOf(chunk_)});
  }
  return addValue({.logical = name, .local = name, .shape = shape, .layout = layout, .chunk = chunk_, .perMicrobatch = perMicrobatch});
}

ValueId Builder::parameter(const std::string& name, const Shape& shape, const Layout& layout, bool gradientOverTp) {
  const bool sharded = options_.zero > 0 && options_.dp > 1;
  Parameter p{.name = name, .chunk = chunk_, .layout = layout, .stepLayout = layout, .local = name, .gradientOverTp = gradientOverTp && options_.tp > 1};
  if (sharded) {
    p.stepLayout.dp = 0;
    p.local = name + ".shard";
  }
  out_.tensors.add({.name = name, .shape = shape, .kind = "parameter"});
  Lineage entry{name, "input", {}};
  const auto given = [&](const std::string& local, const Layout& at) {
    declareLocal(chunk_, local, name, shape, at, false).kind = "parameter";
    entry.pieces.push_back({local, rankOf(chunk_)});
  };
  given(p.local, p.stepLayout);
  const bool gathered = sharded && options_.zero == 3;
  if (sharded && !gathered) given(name, layout);
  out_.lineage.push_back(std::move(entry));
  if (gathered) {
    declareLocal(chunk_, name, name, shape, layout, true);
    Node node = communication("all_gather", p.local, name, {"dp"});
    node.attributes = {attribute("dim", 0)};
    forwardNodes(chunk_).push_back(std::move(node));
    checkpoint(chunk_, name, false);
  }
  p.value = addValue({.logical = name, .local = name, .shape = shape, .layout = layout, .chunk = chunk_, .needsGradient = true,
                      .perMicrobatch = gathered, .gradientSumTp = p.gradientOverTp, .parameter = static_cast<int>(parameters_.size())});
  parameters_.push_back(p);
  return p.value;
}

std::vector<ValueId> Builder::apply(const std::string& op, const std::vector<ValueId>& in, const std::vector<Attribute>& attributes,
                                    const std::vector<Result>& results) {
  std::vector<std::string> logicalIn, localIn, logicalOut, localOut;
  bool needsGradient = false;
  for (const ValueId v : in) {
    if (at(v).chunk != chunk_) throw std::logic_error(op + ": operand " + at(v).logical + " is on another stage");
    logicalIn.push_back(at(v).logical);
    localIn.push_back(at(v).local);
    needsGradient = needsGradient || at(v).needsGradient;
  }
  std::vector<ValueId> out;
  for (const Result& r : results) {
    Layout layout = r.layout;
    if (options_.tp == 1) layout.sumTp = false;
    const std::string logical = r.name, local = logical + (layout.sumTp ? ".part" : "");
    if (out_.tensors.find(logical) == nullptr) declareLogical(logical, r.shape);
    declareLocal(chunk_, local, logical, r.shape, layout, true);
    logicalOut.push_back(logical);
    localOut.push_back(local);
    out.push_back(addValue({.logical = logical, .local = local, .shape = r.shape, .layout = layout, .chunk = chunk_, .needsGradient = needsGradient}));
  }
  model(op, logicalIn, logicalOut, logicalAttributes(attributes, results[0].shape, options_.tp), location_);
  const std::vector<Attribute> localAttributes = withShape(attributes, localShape(results[0].shape, results[0].layout));
  forwardNodes(chunk_).push_back({.op = op, .in = localIn, .out = localOut, .attributes = localAttributes, .location = location_});
  for (const std::string& local : localOut) checkpoint(chunk_, local, false);
  record_.push_back({.op = op, .in = in, .out = out, .attributes = attributes, .location = location_, .chunk = chunk_, .layer = layer_});
  return out;
}

ValueId Builder::applyFixed(const std::string& op, const std::vector<ValueId>& in, const std::vector<Attribute>& attributes, const Result& result) {
  // Every stage makes its own; the model has it once.
  const bool first = out_.tensors.find(result.name) == nullptr;
  std::vector<std::string> logicalIn, localIn;
  for (const ValueId v : in) {
    logicalIn.push_back(at(v).logical);
    localIn.push_back(at(v).local);
  }
  std::string local = result.name;
  if (program(chunk_).tensors.find(local) != nullptr) local += ".chunk" + std::to_string(chunk_);
  if (first) {
    declareLogical(result.name, result.shape);
    model(op, logicalIn, {result.name}, logicalAttributes(attributes, result.shape, options_.tp), location_);
  }
  declareLocal(chunk_, local, result.name, result.shape, result.layout, true);
  forwardNodes(chunk_).push_back(
      {.op = op, .in = localIn, .out = {local}, .attributes = withShape(attributes, localShape(result.shape, result.layout)), .location = location_});
  checkpoint(chunk_, local, false);
  return addValue({.logical = result.name, .local = local, .shape = result.shape, .layout = result.layout, .chunk = chunk_});
}

ValueId Builder::meanLoss(const std::string& op, const std::vector<ValueId>& in, const std::vector<Attribute>& attributes, const std::string& name) {
  std::vector<std::string> logicalIn, localIn;
  for (const ValueId v : in) {
    logicalIn.push_back(at(v).logical);
    localIn.push_back(at(v).local);
  }
  declareLogical(name, {});
  model(op, logicalIn, {name}, attributes, location_);
  const std::string own = name + ".microbatch", part = name + ".part";
  declareLocal(chunk_, own, "", {}, {}, true);
  declareLocal(chunk_, part, name, {}, {.sumDp = true, .sumMb = true}, true);
  if (cutVocabulary(in)) cutCrossEntropy(in, own, name);
  else forwardNodes(chunk_).push_back({.op = op, .in = localIn, .out = {own}, .attributes = attributes, .location = location_});
  forwardNodes(chunk_).push_back(
      {.op = "div", .in = {own}, .out = {part}, .attributes = {attribute("scalar", options_.splits())}, .location = location_});
  checkpoint(chunk_, part, true);
  const ValueId loss = addValue({.logical = name, .local = part, .shape = {}, .layout = {.sumDp = true, .sumMb = true}, .chunk = chunk_, .needsGradient = true});
  record_.push_back({.kind = Kind::kLoss, .op = op, .in = in, .out = {loss}, .attributes = attributes, .location = location_, .chunk = chunk_});
  return loss;
}

bool Builder::cutVocabulary(const std::vector<ValueId>& in) const { return options_.tp > 1 && layout(in[0]).tp >= 0; }

std::string Builder::localTensor(const std::string& name, const Shape& shape, const Layout& layout, const std::string& logical) {
  declareLocal(chunk_, name, logical, shape, layout, true);
  return name;
}

void Builder::cutCrossEntropy(const std::vector<ValueId>& in, const std::string& own, const std::string& name) {
  const Value logits = at(in[0]), labels = at(in[1]);
  const Layout cut = logits.layout, whole{.batch = 0};
  Shape one = logits.shape;
  one.back() = 1;
  std::vector<Node>& nodes = forwardNodes(chunk_);
  const auto run = [&](const std::string& op, const std::vector<std::string>& operands, const std::string& result, const Shape& shape, const Layout& layout,
                       const std::vector<Attribute>& attributes = {}) {
    const std::string to = localTensor(name + "." + result, shape, layout);
    nodes.push_back({.op = op, .in = operands, .out = {to}, .attributes = attributes, .location = location_});
    return to;
  };
  const auto reduce = [&](const std::string& operand, const std::string& result, const char* how) {
    const std::string to = localTensor(name + "." + result, one, whole);
    Node node = communication("all_reduce", operand, to, {"tp"});
    node.attributes = {attributeText("reduce", how)};
    nodes.push_back(std::move(node));
    return to;
  };
  const std::vector<Attribute> last{attribute("dim", -1), attributeFlag("keepdim", true)};
  const std::int64_t window = logits.shape.back() / options_.tp;
  const std::string maximum = reduce(run("amax", {logits.local}, "own_maximum", one, whole, last), "maximum", "max");
  const std::string shifted = run("sub", {logits.local, maximum}, "shifted", logits.shape, cut);
  const std::string powers = run("exp", {shifted}, "exp", logits.shape, cut);
  const std::string sum = reduce(run("sum", {powers}, "own_sum", one, whole, last), "sum_exp", "sum");
  const std::string chosen = run("one_hot", {labels.local}, "one_hot", logits.shape, cut,
                                 {attributePerTp("start", 0, window), attributePerTp("stop", window, window)});
  const std::string picked = run("mul", {logits.local, chosen}, "picked", logits.shape, cut);
  const std::string target = reduce(run("sum", {picked}, "own_target", one, whole, last), "target", "sum");
  const std::string log = run("log", {sum}, "log_sum_exp", one, whole);
  // The maximum is given back to the logarithm. (Subtracting it from the label's logit is the same only for labels that are in the vocabulary, which the
  // proof does not know.)
  const std::string restored = run("add", {log, maximum}, "log_sum_exp.unshifted", one, whole);
  const std::string losses = run("sub", {restored, target}, "tokens", one, whole);
  nodes.push_back({.op = "mean", .in = {losses}, .out = {own}, .location = location_});
}

// (softmax - one_hot) / tokens, times the gradient of the microbatch's loss.
void Builder::backwardCutCrossEntropy(const Record& record, const std::string& ownGradient) {
  const Value logits = at(record.in[0]);
  const std::string name = at(record.out[0]).logical;
  chunk_ = record.chunk;
  std::vector<Node>& nodes = backwardNodes(record.chunk);
  const auto run = [&](const std::string& op, const std::vector<std::string>& operands, const std::string& to, const std::string& logical,
                       const std::vector<Attribute>& attributes = {}) {
    localTensor(to, logits.shape, logits.layout, logical);
    nodes.push_back({.op = op, .in = operands, .out = {to}, .attributes = attributes, .location = location_});
    return to;
  };
  const std::string logical = fresh(logits.logical + ".grad");
  declareLogical(logical, logits.shape);
  model(record.op + "_backward", {at(record.out[0]).gradient, logits.logical, at(record.in[1]).logical}, {logical, ""}, record.attributes, location_);
  const Shape own = localShape(logits.shape, logits.layout);
  std::int64_t tokens = 1;
  for (std::size_t d = 0; d + 1 < own.size(); ++d) tokens *= own[d];
  const std::string probabilities = run("div", {name + ".exp", name + ".sum_exp"}, name + ".softmax", "");
  const std::string difference = run("sub", {probabilities, name + ".one_hot"}, name + ".difference", "");
  const std::string mean = run("div", {difference}, name + ".difference.mean", "", {attribute("scalar", tokens)});
  run("mul", {mean, ownGradient}, logical, logical);
  checkpoint(record.chunk, logical, false);
  addGradient(record.in[0], logical, logical);
}

ValueId Builder::enterTp(ValueId value) {
  if (options_.tp == 1) return value;
  Value entered = at(value);
  entered.gradient = entered.localGradient = {};
  entered.gradientSumTp = true;
  if (entered.layout.tp >= 0) {
    const int dim = entered.layout.tp;
    entered.layout.tp = -1;
    entered.local += ".full";
    declareLocal(chunk_, entered.local, entered.logical, entered.shape, entered.layout, true);
    Node node = communication("all_gather", at(value).local, entered.local, {"tp"});
    node.attributes = {attribute("dim", dim)};
    forwardNodes(chunk_).push_back(std::move(node));
    checkpoint(chunk_, entered.local, false);
  }
  const ValueId out = addValue(std::move(entered));
  record_.push_back({.kind = Kind::kEnterTp, .in = {value}, .out = {out}, .location = location_, .chunk = chunk_, .layer = layer_});
  return out;
}

ValueId Builder::reduceOverTp(ValueId value) {
  if (options_.tp == 1) return value;
  Value reduced = at(value);
  reduced.gradient = reduced.localGradient = {};
  reduced.layout.sumTp = false;
  reduced.local = reduced.logical;
  std::string op = "all_reduce";
  if (options_.sequenceParallel) {
    op = "reduce_scatter";
    reduced.layout.tp = 1;
  }
  declareLocal(chunk_, reduced.local, reduced.logical, reduced.shape, reduced.layout, true);
  Node node = communication(op, at(value).local, reduced.local, {"tp"});
  if (options_.sequenceParallel) node.attributes = {attribute("dim", 1)};
  forwardNodes(chunk_).push_back(std::move(node));
  checkpoint(chunk_, reduced.local, false);
  const ValueId out = addValue(std::move(reduced));
  record_.push_back({.kind = Kind::kReduceOverTp, .in = {value}, .out = {out}, .location = location_, .chunk = chunk_, .layer = layer_});
  return out;
}

ValueId Builder::toChunk(ValueId value, int chunk) {
  const int from = at(value).chunk;
  if (from == chunk) return value;
  Value moved = at(value);
  moved.gradient = moved.localGradient = {};
  moved.chunk = chunk;
  Node send = communication("send", moved.local, "", {}), receive = communication("recv", "", moved.local, {});
  send.comm = receive.comm = "forward." + moved.local;
  send.peerField = "to";
  send.peer = rankOf(chunk);
  receive.peerField = "from";
  receive.peer = rankOf(from);
  declareLocal(chunk, moved.local, moved.logical, moved.shape, moved.layout, true);
  forwardNodes(from).push_back(std::move(send));
  forwardNodes(chunk).push_back(std::move(receive));
  checkpoint(chunk, moved.local, true);
  const ValueId out = addValue(std::move(moved));
  record_.push_back({.kind = Kind::kMove, .in = {value}, .out = {out}, .location = location_, .chunk = chunk});
  return out;
}

void Builder::markBoundary(ValueId v) {
  at(v).boundary = true;
  if (options_.checkpoints == "layers") checkpoint(at(v).chunk, at(v).local, true);
}

// ---------------------------------------------------------------- backward

std::string Builder::saved(int chunk, const std::string& local) {
  const auto it = saved_.find({chunk, local});
  if (it != saved_.end()) return it->second;
  // A parameter that was gathered for the forward pass was freed after it: gathered again.
  const Tensor* t = program(chunk).tensors.find(local);
  const auto shard = [&] { return program(chunk).tensors.find(local + ".shard"); };
  if (options_.zero != 3 || t == nullptr || !t->kind.empty() || t->logical != local || shard() == nullptr || shard()->kind != "parameter") return local;
  const std::string again = local + ".again";
  const Tensor& logical = out_.tensors.at(local);
  declareLocal(chunk, again, local, logical.shape, Layout(t->layout), true);
  Node node = communication("all_gather", local + ".shard", again, {"dp"});
  node.attributes = {attribute("dim", 0)};
  backwardNodes(chunk).push_back(std::move(node));
  checkpoint(chunk, again, false);
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
      Tensor copy = program(layer.chunk).tensors.at(name);
      copy.name += ".again";
      renamed[name] = copy.name;
      saved_[{layer.chunk, name}] = copy.name;
      name = copy.name;
      program(layer.chunk).tensors.add(std::move(copy));
      checkpoint(layer.chunk, name, false);
    }
    if (!node.comm.empty()) node.comm += ".again";
    backwardNodes(layer.chunk).push_back(std::move(node));
  }
}

Layout Builder::gradientLayout(const Value& value) const {
  Layout layout = value.layout;
  layout.sumTp = value.gradientSumTp;
  layout.sumDp = layout.sumMb = layout.batch < 0;
  return layout;
}

std::string Builder::localGradientName(const std::string& logical, const Layout& layout) const {
  if (layout.sumMb) return logical + ".mb";
  return layout.sumTp ? logical + ".part" : logical;
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
  backwardNodes(v.chunk).push_back({.op = "add", .in = {v.localGradient, local}, .out = {localSum}, .location = location_});
  checkpoint(v.chunk, localSum, v.boundary);
  v.gradient = sum;
  v.localGradient = localSum;
}

void Builder::backward(ValueId loss) {
  const std::string one = at(loss).logical + ".grad";
  for (Tensors* tensors : {&out_.tensors, &program(at(loss).chunk).tensors})
    tensors->add({.name = one, .shape = {}, .kind = "constant", .value = "1"});
  at(loss).gradient = at(loss).localGradient = one;
  for (std::size_t i = record_.size(); i-- > 0;) {
    const Record record = record_[i];
    const bool wanted = std::any_of(record.out.begin(), record.out.end(), [&](ValueId v) { return !at(v).gradient.empty(); });
    if (!wanted) continue;
    location_ = record.location;
    if (options_.recompute && record.layer >= 0 && !layers_[static_cast<std::size_t>(record.layer)].recomputed)
      recompute(layers_[static_cast<std::size_t>(record.layer)]);
    switch (record.kind) {
      case Kind::kOperator: backwardOperator(record); break;
      case Kind::kLoss: backwardLoss(record); break;
      case Kind::kEnterTp:
      case Kind::kReduceOverTp: backwardCommunication(record); break;
      case Kind::kMove: backwardMove(record); break;
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
  model(record.op + "_backward", logicalIn, logicalOut, logicalAttributes(record.attributes, first.shape, options_.tp), location_);
  backwardNodes(record.chunk).push_back({.op = record.op + "_backward", .in = localIn, .out = localOut,
                                         .attributes = withShape(record.attributes, localShape(first.shape, first.layout)), .location = location_});
  for (std::size_t i = 0; i < record.in.size(); ++i) {
    if (localOut[i].empty()) continue;
    checkpoint(record.chunk, localOut[i], false);
    addGradient(record.in[i], logicalOut[i], localOut[i]);
  }
}

void Builder::backwardLoss(const Record& record) {
  const Value& loss = at(record.out[0]);
  const std::string own = loss.logical + ".microbatch", ownGradient = own + ".grad";
  declareLocal(record.chunk, ownGradient, "", {}, {}, true);
  backwardNodes(record.chunk).push_back({.op = "div_backward", .in = {loss.localGradient, own}, .out = {ownGradient},
                                         .attributes = {attribute("scalar", options_.splits())}, .location = location_});
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
  if (record.kind == Kind::kEnterTp) {
    op = layout.tp >= 0 ? "reduce_scatter" : "all_reduce";
    dim = layout.tp;
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
  Node node = communication(op, from.localGradient, name, {"tp"});
  if (dim >= 0) node.attributes = {attribute("dim", dim)};
  backwardNodes(record.chunk).push_back(std::move(node));
  checkpoint(record.chunk, name, false);
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
  checkpoint(to.chunk, name, true);
  addGradient(record.in[0], from.gradient, name);
}

// ---------------------------------------------------------------- the training step

void Builder::accumulate(int chunk, const std::string& from, const std::string& to, const std::string& logical, const Shape& shape, Layout layout) {
  layout.sumMb = false;
  declareLocal(chunk, to, logical, shape, layout, false);
  program(chunk).accumulations.push_back({from, to, location_, chunk});
  checkpoint(chunk, to, true);
}

std::string Builder::stepCommunication(Parameter& p, const std::string& op, const std::string& in, const std::string& out, Layout layout,
                                       std::vector<std::string> group) {
  const Value& v = at(p.value);
  declareLocal(p.chunk, out, program(p.chunk).tensors.at(in).logical, v.shape, layout, false);
  Node node = communication(op, in, out, std::move(group));
  node.runs = Runs::kOnce;
  if (op != "all_reduce") node.attributes = {attribute("dim", 0)};
  program(p.chunk).step.push_back(std::move(node));
  checkpoint(p.chunk, out, true);
  return out;
}

void Builder::reduceGradients() {
  for (Parameter& p : parameters_) {
    const Value& v = at(p.value);
    if (v.gradient.empty()) throw std::logic_error("parameter " + p.name + " has no gradient");
    location_ = p.name;
    Tensor& logical = *out_.tensors.find(v.gradient);
    logical.gradOf = p.name;
    Layout layout = gradientLayout(v);
    std::string local = v.localGradient;
    const std::string base = p.name + ".grad";
    const bool overDp = options_.dp > 1;
    if (overDp && options_.zero >= 2) {
      // Only a piece of the gradient is kept: reduced in each microbatch, before it is accumulated.
      const std::string shard = base + ".mb.shard";
      layout.sumDp = false;
      layout.dp = 0;
      declareLocal(p.chunk, shard, v.gradient, v.shape, layout, true);
      Node node = communication("reduce_scatter", local, shard, {"dp"});
      node.attributes = {attribute("dim", 0)};
      backwardNodes(p.chunk).push_back(std::move(node));
      checkpoint(p.chunk, shard, false);
      local = shard;
    }
    accumulate(p.chunk, local, base + ".sum", v.gradient, v.shape, layout);
    local = base + ".sum";
    layout.sumMb = false;
    if (overDp && options_.zero < 2) {
      layout.sumDp = false;
      if (options_.zero == 1) layout.dp = 0;
      local = stepCommunication(p, options_.zero == 1 ? "reduce_scatter" : "all_reduce", local, base + ".dp", layout, {"dp"});
    }
    if (layout.sumTp) {
      layout.sumTp = false;
      local = stepCommunication(p, "all_reduce", local, base + ".tp", layout, {"tp"});
    }
    finalGradients_.push_back(v.gradient);
    finalLocalGradients_.push_back(local);
  }
}

void Builder::clipGradients() {
  location_ = "clip_grad_norm";
  // Squares of all norms are added up: in the model in one chain; in the plan first what is cut alike on one stage, then over the axes it is
  // cut over, so that a replicated parameter counts once, then over the stages.
  const auto scalar = [&](const std::string& name) { declareLogical(name, {}); };
  std::string total;
  std::vector<std::map<std::vector<std::string>, std::vector<std::string>>> squares(out_.programs.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    const std::string norm = p.name + ".grad.norm", square = norm + ".square";
    scalar(norm);
    scalar(square);
    model("grad_norm", {finalGradients_[i]}, {norm}, {}, location_);
    model("square", {norm}, {square}, {}, location_);
    Layout layout;
    layout.sumTp = p.stepLayout.tp >= 0 && options_.tp > 1;
    layout.sumDp = p.stepLayout.dp >= 0;
    declareLocal(p.chunk, norm, layout.sumTp || layout.sumDp ? "" : norm, {}, {}, false);
    declareLocal(p.chunk, square, square, {}, layout, false);
    step(p.chunk, "grad_norm", {finalLocalGradients_[i]}, {norm}, {}, location_);
    step(p.chunk, "square", {norm}, {square}, {}, location_);
    checkpoint(p.chunk, square, true);
    std::vector<std::string> axes;
    if (layout.sumTp) axes.emplace_back("tp");
    if (layout.sumDp) axes.emplace_back("dp");
    squares[static_cast<std::size_t>(rankOf(p.chunk))][axes].push_back(square);
    if (total.empty()) {
      total = square;
      continue;
    }
    const std::string sum = fresh("grad_norm.sum");
    scalar(sum);
    model("add", {total, square}, {sum}, {}, location_);
    total = sum;
  }
  scalar("grad_norm");
  model("sqrt", {total}, {"grad_norm"}, {}, location_);
  for (int rank = 0; rank < static_cast<int>(options_.pp); ++rank) {
    const auto chain = [&](const std::vector<std::string>& terms, const std::string& name) {
      std::string sum = terms[0];
      for (std::size_t k = 1; k < terms.size(); ++k) {
        const std::string next = name + "." + std::to_string(k);
        declareLocal(rank, next, "", {}, {}, false);
        step(rank, "add", {sum, terms[k]}, {next}, {}, location_);
        sum = next;
      }
      return sum;
    };
    const auto reduce = [&](const std::string& in, const std::string& out, const std::string& logical, const std::vector<std::string>& axes) {
      declareLocal(rank, out, logical, {}, {}, false);
      Node node = communication("all_reduce", in, out, axes);
      node.runs = Runs::kOnce;
      program(rank).step.push_back(std::move(node));
      return out;
    };
    std::vector<std::string> parts;
    for (const auto& [axes, terms] : squares[static_cast<std::size_t>(rank)]) {
      std::string name = "grad_norm.replicated";
      if (!axes.empty()) name = "grad_norm.cut_over";
      for (const std::string& axis : axes) name += "_" + axis;
      const std::string sum = chain(terms, name);
      parts.push_back(axes.empty() ? sum : reduce(sum, name, "", axes));
    }
    std::string sum = chain(parts, "grad_norm.stage");
    if (options_.pp > 1) sum = reduce(sum, "grad_norm.square", total, {"pp"});
    declareLocal(rank, "grad_norm", "grad_norm", {}, {}, false);
    step(rank, "sqrt", {sum}, {"grad_norm"}, {}, location_);
    checkpoint(rank, "grad_norm", true);
    output("grad_norm", rank, "grad_norm");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    const std::string clipped = p.name + ".grad.clipped";
    const Shape& full = at(p.value).shape;
    declareLogical(clipped, full);
    declareLocal(p.chunk, clipped, clipped, full, p.stepLayout, false);
    const std::vector<Attribute> attributes{attributeNumber("max_norm", options_.clip)};
    model("clip_grad", {finalGradients_[i], "grad_norm"}, {clipped}, attributes, location_);
    step(p.chunk, "clip_grad", {finalLocalGradients_[i], "grad_norm"}, {clipped}, attributes, location_);
    checkpoint(p.chunk, clipped, true);
    finalGradients_[i] = finalLocalGradients_[i] = clipped;
  }
}

void Builder::optimizerStep() {
  location_ = "optimizer";
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    const Shape& full = at(p.value).shape;
    std::vector<std::string> states;
    std::vector<Attribute> attributes{attributeNumber("lr", options_.learningRate), attributeNumber("weight_decay", options_.weightDecay)};
    if (options_.optimizer == "adamw") {
      states = {p.name + ".exp_avg", p.name + ".exp_avg_sq"};
      attributes.push_back(attribute("step", 1));
    }
    const std::string updated = p.name + ".new", sharded = p.local + ".new";
    std::vector<std::string> in{p.name, finalGradients_[i]}, out{updated};
    std::vector<std::string> localIn{p.local, finalLocalGradients_[i]}, localOut{sharded};
    declareLogical(updated, full);
    declareLocal(p.chunk, sharded, updated, full, p.stepLayout, false);
    for (const std::string& s : states) {
      out_.tensors.add({.name = s, .shape = full, .kind = "parameter"});
      declareLocal(p.chunk, s, s, full, p.stepLayout, false).kind = "parameter";
      out_.lineage.push_back({s, "input", {{s, rankOf(p.chunk)}}});
      declareLogical(s + ".new", full);
      declareLocal(p.chunk, s + ".new", s + ".new", full, p.stepLayout, false);
      for (auto* list : {&in, &localIn}) list->push_back(s);
      for (auto* list : {&out, &localOut}) list->push_back(s + ".new");
    }
    model(options_.optimizer, in, out, attributes, location_);
    step(p.chunk, options_.optimizer, localIn, localOut, attributes, location_);
    if (options_.zero == 1 || options_.zero == 2) {
      if (sharded != updated) {
        checkpoint(p.chunk, sharded, true);
        stepCommunication(p, "all_gather", sharded, updated, p.layout, {"dp"});
      }
      output(updated, p.chunk, updated);
    } else {
      output(updated, p.chunk, sharded);
    }
    for (const std::string& s : states) output(s + ".new", p.chunk, s + ".new");
  }
}

void Builder::output(const std::string& logical, int chunk, const std::string& local) {
  if (std::find(out_.outputs.begin(), out_.outputs.end(), logical) == out_.outputs.end()) out_.outputs.push_back(logical);
  out_.lineage.push_back({logical, "output", {{local, rankOf(chunk)}}});
}

Generated Builder::finish() {
  for (const Record& record : record_) {
    if (record.kind != Kind::kLoss) continue;
    const Value& loss = at(record.out[0]);
    location_ = loss.logical;
    accumulate(loss.chunk, loss.local, loss.logical + ".sum", loss.logical, {}, {.sumDp = options_.dp > 1});
    std::string local = loss.logical + ".sum";
    if (options_.dp > 1) {
      declareLocal(loss.chunk, loss.logical, loss.logical, {}, {}, false);
      Node node = communication("all_reduce", local, loss.logical, {"dp"});
      node.runs = Runs::kOnce;
      program(loss.chunk).step.push_back(std::move(node));
      local = loss.logical;
    }
    output(loss.logical, loss.chunk, local);
  }
  reduceGradients();
  for (std::size_t i = 0; i < parameters_.size(); ++i) output(finalGradients_[i], parameters_[i].chunk, finalLocalGradients_[i]);
  if (options_.clip != "0") clipGradients();
  optimizerStep();
  return std::move(out_);
}

}  // namespace shardproof::generate
