// SPDX-License-Identifier: Apache-2.0
#include "generate/builder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace shardproof::generate {

Attribute attribute(std::string key, std::int64_t value) {
  return {.key = std::move(key), .json = std::to_string(value)};
}
Attribute attributeText(std::string key, const std::string& value) {
  return {.key = std::move(key), .json = '"' + value + '"'};
}
Attribute attributeNumber(std::string key, std::string decimal) {
  return {.key = std::move(key), .json = std::move(decimal)};
}
Attribute attributeFlag(std::string key, bool value) {
  return {.key = std::move(key), .json = value ? "true" : "false"};
}
Attribute attributePerTp(std::string key, std::int64_t first, std::int64_t perTp,
                         std::int64_t perEp) {
  return {.key = std::move(key), .json = std::to_string(first), .perTp = perTp, .perEp = perEp};
}
Attribute attributePerCp(std::string key, std::int64_t first, std::int64_t perCp) {
  return {.key = std::move(key), .json = std::to_string(first), .perCp = perCp};
}
Attribute attributeShape(std::string key) {
  return {.key = std::move(key), .json = {}, .shape = true};
}
Attribute attributeIntegers(std::string key, const std::vector<std::int64_t>& values) {
  std::string json = "[";
  for (const std::int64_t v : values) json += (json.size() > 1 ? ", " : "") + std::to_string(v);
  return {.key = std::move(key), .json = json + "]"};
}

std::string attentionScale(std::int64_t width) {
  char digits[32];
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  return {digits, std::to_chars(digits, digits + sizeof digits, scale).ptr};
}

std::vector<Attribute> withShape(std::vector<Attribute> attributes, const Shape& shape) {
  for (Attribute& a : attributes)
    if (a.shape) a = attributeIntegers(a.key, shape);
  return attributes;
}

// The model's window covers what all ranks' windows cover together.
std::vector<Attribute> logicalAttributes(std::vector<Attribute> attributes, const Shape& shape,
                                         const Options& options) {
  for (Attribute& a : attributes) {
    if (a.perTp == 0 && a.perEp == 0 && a.perCp == 0) continue;
    if (a.key == "stop" || a.key == "local_expert_end")
      a.json = std::to_string(std::stoll(a.json) + a.perTp * (options.tp - 1) +
                              a.perEp * (options.epRanks() - 1));
    a.perTp = a.perEp = a.perCp = 0;
  }
  return withShape(std::move(attributes), shape);
}

Builder::Builder(const Options& options) : options_(options) {
  out_.programs.resize(static_cast<std::size_t>(options.pp));
}

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
    if (n % pieces != 0)
      throw OptionError("a dimension of size " + std::to_string(n) + " cannot be cut into " +
                        std::to_string(pieces) + " equal pieces");
    n /= pieces;
  };
  cut(layout.batch, options_.splits() / (layout.gathered ? options_.epRanks() : 1));
  cut(layout.cp, options_.cp);
  cut(layout.ep, options_.epRanks());
  cut(layout.tp, options_.tp / layout.copies);
  cut(layout.tpInner, layout.copies);
  cut(layout.dp, dataRanks(layout));
  return local;
}

Layout Builder::effective(Layout layout) const {
  if (options_.tp == 1) layout.sumTp = false;
  if (layout.copies == 1) layout.tpInner = -1;
  if (options_.cp == 1) {
    layout.cp = -1;
    layout.sumCp = false;
  }
  if (options_.epRanks() == 1) {
    layout.ep = -1;
    layout.gathered = layout.sumEp = false;
  }
  return layout;
}

std::vector<std::string> Builder::dataAxes(const Layout& layout) const {
  std::vector<std::string> axes{options_.epRanks() == 1 ? "dp" : "edp"};
  if (options_.epRanks() > 1 && layout.ep < 0) axes.emplace_back("ep");
  if (options_.cp > 1) axes.emplace_back("cp");
  return axes;
}

std::int64_t Builder::dataRanks(const Layout& layout) const {
  return options_.dp * options_.cp / (layout.ep >= 0 ? options_.epRanks() : 1);
}

std::string Builder::fresh(const std::string& name) {
  const int n = ++used_[name];
  return n == 1 ? name : name + "." + std::to_string(n);
}

ValueId Builder::addValue(Value value) {
  values_.push_back(std::move(value));
  return static_cast<ValueId>(values_.size() - 1);
}

void Builder::declareLogical(const std::string& name, const Shape& shape,
                             const std::string& gradOf) {
  out_.tensors.add({.name = name, .shape = shape, .gradOf = gradOf});
}

Tensor& Builder::declareLocal(int chunk, const std::string& name, const std::string& logical,
                              const Shape& shape, const Layout& layout, bool perMicrobatch) {
  return program(chunk).tensors.add({.name = name,
                                     .shape = localShape(shape, layout),
                                     .perMicrobatch = perMicrobatch,
                                     .logical = logical,
                                     .layout = layout});
}

void Builder::cutPoint(int chunk, const std::string& local, bool boundary) {
  if (options_.cutPoints == "all" || (options_.cutPoints == "layers" && boundary))
    claim(chunk, local);
}

void Builder::claim(int chunk, const std::string& local) {
  const Tensor& t = program(chunk).tensors.at(local);
  if (t.logical.empty() || !claimed_.emplace(rankOf(chunk), local).second) return;
  out_.lineage.push_back({t.logical, "cut_point", {{local, rankOf(chunk)}}});
}

void Builder::inputPiece(const std::string& logical, int chunk, const std::string& local) {
  const auto [it, isNew] = inputEntries_.emplace(logical, out_.lineage.size());
  if (isNew) out_.lineage.push_back({logical, "input", {}});
  out_.lineage[it->second].pieces.push_back({local, rankOf(chunk)});
}

void Builder::model(const std::string& op, std::vector<std::string> in,
                    std::vector<std::string> out, std::vector<Attribute> attributes,
                    const std::string& location) {
  out_.nodes.push_back({.op = op,
                        .in = std::move(in),
                        .out = std::move(out),
                        .attributes = std::move(attributes),
                        .location = location});
}

void Builder::step(int chunk, const std::string& op, std::vector<std::string> in,
                   std::vector<std::string> out, std::vector<Attribute> attributes,
                   const std::string& location) {
  program(chunk).step.push_back({.op = op,
                                 .in = std::move(in),
                                 .out = std::move(out),
                                 .attributes = std::move(attributes),
                                 .location = location,
                                 .runs = Runs::kOnce});
}

Node Builder::communication(const std::string& op, const std::string& in, const std::string& out,
                            std::vector<std::string> group) {
  Node node{.op = op, .location = location_, .group = std::move(group)};
  if (!in.empty()) node.in.push_back(in);
  if (!out.empty()) node.out.push_back(out);
  // One id for each place in the program; ranks of other stages never join the group, but a reader
  // of the plan should see which is which.
  node.comm = op + "." + (out.empty() ? in : out);
  return node;
}

}  // namespace shardproof::generate
