// SPDX-License-Identifier: Apache-2.0
// The cross entropy of logits that are cut over tp along the vocabulary, as Megatron-LM computes it
// (arXiv 1909.08053, section 3).
#include "generate/builder.h"

namespace shardproof::generate {

bool Builder::cutVocabulary(const std::vector<ValueId>& in) const {
  return options_.tp > 1 && layout(in[0]).tp >= 0;
}

std::string Builder::localTensor(const std::string& name, const Shape& shape, const Layout& layout,
                                 const std::string& logical) {
  declareLocal(chunk_, name, logical, shape, layout, true);
  return name;
}

void Builder::cutCrossEntropy(const std::vector<ValueId>& in, const std::string& own,
                              const std::string& name) {
  const Value logits = at(in[0]), labels = at(in[1]);
  const Layout cut = logits.layout, whole{.batch = 0, .cp = 1};
  Shape one = logits.shape;
  one.back() = 1;
  std::vector<Node>& nodes = forwardNodes(chunk_);
  const auto run = [&](const std::string& op, const std::vector<std::string>& operands,
                       const std::string& result, const Shape& shape, const Layout& layout,
                       const std::vector<Attribute>& attributes = {}) {
    const std::string to = localTensor(name + "." + result, shape, layout);
    nodes.push_back(
        {.op = op, .in = operands, .out = {to}, .attributes = attributes, .location = location_});
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
  const std::string maximum =
      reduce(run("amax", {logits.local}, "own_maximum", one, whole, last), "maximum", "max");
  const std::string shifted = run("sub", {logits.local, maximum}, "shifted", logits.shape, cut);
  const std::string powers = run("exp", {shifted}, "exp", logits.shape, cut);
  const std::string sum =
      reduce(run("sum", {powers}, "own_sum", one, whole, last), "sum_exp", "sum");
  const std::string chosen =
      run("one_hot", {labels.local}, "one_hot", logits.shape, cut,
          {attributePerTp("start", 0, window), attributePerTp("stop", window, window)});
  const std::string picked = run("mul", {logits.local, chosen}, "picked", logits.shape, cut);
  const std::string target =
      reduce(run("sum", {picked}, "own_target", one, whole, last), "target", "sum");
  const std::string log = run("log", {sum}, "log_sum_exp", one, whole);
  // The maximum is given back to the logarithm. (Subtracting it from the label's logit is the same
  // only for labels that are in the vocabulary, which the proof does not know.)
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
  const auto run = [&](const std::string& op, const std::vector<std::string>& operands,
                       const std::string& to, const std::string& logical,
                       const std::vector<Attribute>& attributes = {}) {
    localTensor(to, logits.shape, logits.layout, logical);
    nodes.push_back(
        {.op = op, .in = operands, .out = {to}, .attributes = attributes, .location = location_});
    return to;
  };
  const std::string logical = fresh(logits.logical + ".grad");
  declareLogical(logical, logits.shape);
  model(record.op + "_backward",
        {at(record.out[0]).gradient, logits.logical, at(record.in[1]).logical}, {logical, ""},
        record.attributes, location_);
  const Shape own = localShape(logits.shape, logits.layout);
  std::int64_t tokens = 1;
  for (std::size_t d = 0; d + 1 < own.size(); ++d) tokens *= own[d];
  const std::string probabilities =
      run("div", {name + ".exp", name + ".sum_exp"}, name + ".softmax", "");
  const std::string difference =
      run("sub", {probabilities, name + ".one_hot"}, name + ".difference", "");
  const std::string mean =
      run("div", {difference}, name + ".difference.mean", "", {attribute("scalar", tokens)});
  run("mul", {mean, ownGradient}, logical, logical);
  cutPoint(record.chunk, logical, false);
  addGradient(record.in[0], logical, logical);
}

}  // namespace shardproof::generate
