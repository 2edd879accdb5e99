// SPDX-License-Identifier: Apache-2.0
// After the last microbatch: reduction of the gradients, their global norm and clipping, the
// optimizer, and what is claimed as output.
#include "generate/builder.h"

#include <algorithm>
#include <utility>

namespace shardproof::generate {

void Builder::accumulate(int chunk, const std::string& from, const std::string& to,
                         const std::string& logical, const Shape& shape, Layout layout) {
  layout.sumMb = false;
  declareLocal(chunk, to, logical, shape, layout, false);
  program(chunk).accumulations.push_back({from, to, location_, chunk});
  cutPoint(chunk, to, true);
}

std::string Builder::stepCommunication(Parameter& p, const std::string& op, const std::string& in,
                                       const std::string& out, Layout layout,
                                       std::vector<std::string> group) {
  const Value& v = at(p.value);
  declareLocal(p.chunk, out, program(p.chunk).tensors.at(in).logical, v.shape, layout, false);
  Node node = communication(op, in, out, std::move(group));
  node.runs = Runs::kOnce;
  if (op != "all_reduce") node.attributes = {attribute("dim", p.stepLayout.dp)};
  program(p.chunk).step.push_back(std::move(node));
  cutPoint(p.chunk, out, true);
  return out;
}

// Each loss is added up over microbatches and ranks, and with its weight over the losses of all
// stages. The gradients are those of this total.
void Builder::totalLoss() {
  std::vector<const Record*> losses;
  for (const Record& record : record_)
    if (record.kind == Kind::kLoss) losses.push_back(&record);
  const bool several = losses.size() > 1;
  std::string total;
  std::vector<std::string> totals(out_.programs.size());
  for (const Record* record : losses) {
    const Value loss = at(record->out[0]);
    const bool overDp = dataRanks({}) > 1;
    location_ = loss.logical;
    accumulate(loss.chunk, loss.local, loss.logical + ".sum", loss.logical, {}, {.sumDp = overDp});
    std::string local = loss.logical + ".sum";
    if (overDp) {
      declareLocal(loss.chunk, loss.logical, loss.logical, {}, {}, false);
      Node node = communication("all_reduce", local, loss.logical, dataAxes({}));
      node.runs = Runs::kOnce;
      program(loss.chunk).step.push_back(std::move(node));
      local = loss.logical;
    }
    output(loss.logical, loss.chunk, local);
    if (!several) continue;
    const std::string weighted = loss.logical + ".weighted";
    const std::vector<Attribute> weight{attributeNumber("scalar", record->weight)};
    declareLogical(weighted, {});
    declareLocal(loss.chunk, weighted, weighted, {}, {}, false);
    model("mul", {loss.logical}, {weighted}, weight, location_);
    step(loss.chunk, "mul", {local}, {weighted}, weight, location_);
    cutPoint(loss.chunk, weighted, true);
    std::string& own = totals[static_cast<std::size_t>(rankOf(loss.chunk))];
    location_ = "loss";
    if (!own.empty()) {
      const std::string sum = weighted + ".total";
      declareLocal(loss.chunk, sum, "", {}, {}, false);
      step(loss.chunk, "add", {own, weighted}, {sum}, {}, location_);
      own = sum;
    } else {
      own = weighted;
    }
    if (total.empty()) {
      total = weighted;
      continue;
    }
    const std::string sum = record == losses.back() ? "loss" : weighted + ".total";
    declareLogical(sum, {});
    model("add", {total, weighted}, {sum}, {}, location_);
    total = sum;
  }
  if (!several) return;
  // Over the stages; one that has no loss adds nothing.
  for (int rank = 0; rank < static_cast<int>(options_.pp); ++rank) {
    std::string& own = totals[static_cast<std::size_t>(rank)];
    if (own.empty()) {
      own = "loss.none";
      program(rank).tensors.add({.name = own, .kind = "constant", .value = "0"});
    }
    if (options_.pp == 1) {
      output("loss", rank, own);
      continue;
    }
    declareLocal(rank, "loss", "loss", {}, {}, false);
    Node node = communication("all_reduce", own, "loss", {"pp"});
    node.runs = Runs::kOnce;
    program(rank).step.push_back(std::move(node));
    output("loss", rank, "loss");
  }
}

void Builder::reduceGradients() {
  for (Parameter& p : parameters_) {
    const Value& v = at(p.value);
    if (v.gradient.empty()) throw std::logic_error("parameter " + p.name + " has no gradient");
    location_ = p.name;
    Layout layout = gradientLayout(v);
    std::string local = v.localGradient;
    const std::string base = p.name + ".grad";
    const bool overDp = dataRanks(p.layout) > 1;
    const std::vector<std::string> axes = dataAxes(p.layout);
    if (overDp && options_.zero >= 2) {
      // Only a piece of the gradient is kept: reduced in each microbatch, before it is accumulated.
      const std::string shard = base + ".mb.shard";
      layout.sumDp = false;
      layout.dp = p.stepLayout.dp;
      declareLocal(p.chunk, shard, v.gradient, v.shape, layout, true);
      Node node = communication("reduce_scatter", local, shard, axes);
      node.attributes = {attribute("dim", p.stepLayout.dp)};
      backwardNodes(p.chunk).push_back(std::move(node));
      cutPoint(p.chunk, shard, false);
      local = shard;
    }
    accumulate(p.chunk, local, base + ".sum", v.gradient, v.shape, layout);
    local = base + ".sum";
    layout.sumMb = false;
    if (overDp && options_.zero < 2) {
      layout.sumDp = false;
      if (options_.zero == 1) layout.dp = p.stepLayout.dp;
      local = stepCommunication(p, options_.zero == 1 ? "reduce_scatter" : "all_reduce", local,
                                base + ".dp", layout, axes);
    }
    if (layout.sumTp) {
      layout.sumTp = false;
      local = stepCommunication(p, "all_reduce", local, base + ".tp", layout, {"tp"});
      if (layout.copies > 1) {
        Node& node = program(p.chunk).step.back();
        node.group.clear();
        node.neighbours = layout.copies;
      }
    }
    finalGradients_.push_back(v.gradient);
    finalLocalGradients_.push_back(local);
  }
  reduceTied();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    out_.tensors.find(finalGradients_[i])->gradOf = parameters_[i].name;
}

// Both stages have the sum of the two gradients, in the model and in the plan: each has one of them
// so far.
void Builder::reduceTied() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tiedTo < 0) continue;
    Parameter& p = parameters_[i];
    const auto first = static_cast<std::size_t>(p.tiedTo);
    const std::vector<int> stages{rankOf(parameters_[first].chunk), rankOf(p.chunk)};
    location_ = p.name;
    const std::string sum = fresh(p.name + ".grad");
    declareLogical(sum, at(p.value).shape);
    model("add", {finalGradients_[i], finalGradients_[first]}, {sum}, {}, location_);
    for (const std::size_t k : {first, i}) {
      Parameter& copy = parameters_[k];
      const std::string out = p.name + ".grad.tied";
      declareLocal(copy.chunk, out, sum, at(copy.value).shape, copy.stepLayout, false);
      Node node = communication("all_reduce", finalLocalGradients_[k], out, {});
      node.runs = Runs::kOnce;
      node.stages = stages;
      program(copy.chunk).step.push_back(std::move(node));
      cutPoint(copy.chunk, out, true);
      finalGradients_[k] = sum;
      finalLocalGradients_[k] = out;
    }
  }
}

void Builder::clipGradients() {
  location_ = "clip_grad_norm";
  // Squares of all norms are added up: in the model in one chain; in the plan first what is cut
  // alike on one stage, then over the axes it is cut over, so that a replicated parameter counts
  // once, then over the stages.
  const auto scalar = [&](const std::string& name) { declareLogical(name, {}); };
  std::string total;
  std::vector<std::map<std::vector<std::string>, std::vector<std::string>>> squares(
      out_.programs.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    if (p.tiedTo >= 0) continue;  // counts once
    const std::string norm = p.name + ".grad.norm", square = norm + ".square";
    scalar(norm);
    scalar(square);
    model("grad_norm", {finalGradients_[i]}, {norm}, {}, location_);
    model("square", {norm}, {square}, {}, location_);
    Layout layout;
    layout.sumTp = p.stepLayout.tp >= 0 && options_.tp > 1;
    layout.sumDp = p.stepLayout.dp >= 0;
    layout.sumEp = p.stepLayout.ep >= 0 && !layout.sumDp;  // sumDp is over ep, too
    const int copies = p.stepLayout.copies;
    const std::string squared = copies > 1 ? square + ".copies" : square;
    declareLocal(p.chunk, norm, layout.sumTp || layout.sumEp || layout.sumDp ? "" : norm, {}, {},
                 false);
    declareLocal(p.chunk, squared, copies > 1 ? "" : square, {}, layout, false);
    step(p.chunk, "grad_norm", {finalLocalGradients_[i]}, {norm}, {}, location_);
    step(p.chunk, "square", {norm}, {squared}, {}, location_);
    if (copies > 1) {  // so that the sum over tp has each piece once
      declareLocal(p.chunk, square, square, {}, layout, false);
      step(p.chunk, "div", {squared}, {square}, {attribute("scalar", copies)}, location_);
    }
    cutPoint(p.chunk, square, true);
    std::vector<std::string> axes;
    if (layout.sumTp) axes.emplace_back("tp");
    if (layout.sumEp) axes.emplace_back("ep");
    if (layout.sumDp)
      for (const std::string& axis : dataAxes({})) axes.push_back(axis);
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
    const auto reduce = [&](const std::string& in, const std::string& out,
                            const std::string& logical, const std::vector<std::string>& axes) {
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
    cutPoint(rank, "grad_norm", true);
    output("grad_norm", rank, "grad_norm");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    const std::string clipped = p.name + ".grad.clipped";
    const Shape& full = at(p.value).shape;
    if (p.tiedTo < 0) declareLogical(clipped, full);
    declareLocal(p.chunk, clipped, clipped, full, p.stepLayout, false);
    const std::vector<Attribute> attributes{attributeNumber("max_norm", options_.clip)};
    if (p.tiedTo < 0)
      model("clip_grad", {finalGradients_[i], "grad_norm"}, {clipped}, attributes, location_);
    step(p.chunk, "clip_grad", {finalLocalGradients_[i], "grad_norm"}, {clipped}, attributes,
         location_);
    cutPoint(p.chunk, clipped, true);
    finalGradients_[i] = finalLocalGradients_[i] = clipped;
  }
}

void Builder::optimizerStep() {
  location_ = "optimizer";
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    const Shape& full = at(p.value).shape;
    std::vector<std::string> states;
    std::vector<Attribute> attributes{attributeNumber("lr", options_.learningRate),
                                      attributeNumber("weight_decay", options_.weightDecay)};
    if (options_.optimizer == "adamw") {
      states = {p.name + ".exp_avg", p.name + ".exp_avg_sq"};
      attributes.push_back(attribute("step", 1));
    }
    const std::string updated = p.name + ".new", sharded = p.local + ".new";
    std::vector<std::string> in{p.name, finalGradients_[i]}, out{updated};
    std::vector<std::string> localIn{p.local, finalLocalGradients_[i]}, localOut{sharded};
    const bool first = p.tiedTo < 0;
    if (first) declareLogical(updated, full);
    declareLocal(p.chunk, sharded, updated, full, p.stepLayout, false);
    for (const std::string& s : states) {
      if (first) {
        out_.tensors.add({.name = s, .shape = full, .kind = "parameter"});
        declareLogical(s + ".new", full);
      }
      declareLocal(p.chunk, s, s, full, p.stepLayout, false).kind = "parameter";
      inputPiece(s, p.chunk, s);
      declareLocal(p.chunk, s + ".new", s + ".new", full, p.stepLayout, false);
      for (auto* list : {&in, &localIn}) list->push_back(s);
      for (auto* list : {&out, &localOut}) list->push_back(s + ".new");
    }
    if (first) model(options_.optimizer, in, out, attributes, location_);
    step(p.chunk, options_.optimizer, localIn, localOut, attributes, location_);
    if (options_.zero == 1 || options_.zero == 2) {
      if (sharded != updated) {
        cutPoint(p.chunk, sharded, true);
        stepCommunication(p, "all_gather", sharded, updated, p.layout, dataAxes(p.layout));
      }
      output(updated, p.chunk, updated);
    } else {
      output(updated, p.chunk, sharded);
    }
    for (const std::string& s : states) output(s + ".new", p.chunk, s + ".new");
  }
}

void Builder::output(const std::string& logical, int chunk, const std::string& local) {
  if (std::find(out_.outputs.begin(), out_.outputs.end(), logical) == out_.outputs.end())
    out_.outputs.push_back(logical);
  out_.lineage.push_back({logical, "output", {{local, rankOf(chunk)}}});
}

Generated Builder::finish() {
  totalLoss();
  reduceGradients();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    output(finalGradients_[i], parameters_[i].chunk, finalLocalGradients_[i]);
  if (options_.clip != "0") clipGradients();
  optimizerStep();
  return std::move(out_);
}

}  // namespace shardproof::generate
