// SPDX-License-Identifier: Apache-2.0
// The calls of an architecture that add inputs, parameters and operators: each appends to the model
// and to one stage's program.
#include "generate/builder.h"

#include <stdexcept>

namespace shardproof::generate {

ValueId Builder::input(const std::string& name, const Shape& shape, const std::string& dtype,
                       const Layout& asked) {
  const Layout layout = effective(asked);
  if (out_.tensors.find(name) == nullptr)
    out_.tensors.add({.name = name, .shape = shape, .kind = "input", .dtype = dtype});
  const bool perMicrobatch = layout.batch >= 0;
  if (program(chunk_).tensors.find(name) == nullptr) {
    Tensor& t = declareLocal(chunk_, name, name, shape, layout, perMicrobatch);
    t.kind = "input";
    t.dtype = dtype;
    inputPiece(name, chunk_, name);
  }
  return addValue({.logical = name,
                   .local = name,
                   .shape = shape,
                   .layout = layout,
                   .chunk = chunk_,
                   .perMicrobatch = perMicrobatch});
}

ValueId Builder::constant(const std::string& name, const Shape& shape, const std::string& dtype,
                          const std::string& value) {
  for (Tensors* tensors : {&out_.tensors, &program(chunk_).tensors})
    if (tensors->find(name) == nullptr)
      tensors->add(
          {.name = name, .shape = shape, .kind = "constant", .dtype = dtype, .value = value});
  return addValue(
      {.logical = name, .local = name, .shape = shape, .chunk = chunk_, .perMicrobatch = false});
}

// ZeRO's shards are flat buffers in the frameworks; here they are pieces along one dimension, the
// first that divides.
int Builder::shardedDimension(const std::string& name, const Shape& shape,
                              const Layout& layout) const {
  const Shape local = localShape(shape, layout);
  for (std::size_t d = 0; d < local.size(); ++d)
    if (local[d] % dataRanks(layout) == 0) return static_cast<int>(d);
  std::string sizes;
  for (const std::int64_t n : local) sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
  throw OptionError("--zero " + std::to_string(options_.zero) + ": " + name + " is [" + sizes +
                    "] on a rank, and none of that divides into " +
                    std::to_string(dataRanks(layout)) + " equal pieces, one for each rank of " +
                    (layout.ep >= 0 ? "--dp that holds these experts" : "--dp"));
}

ValueId Builder::parameter(const std::string& name, const Shape& shape, const Layout& asked,
                           bool gradientOverTp) {
  const Layout layout = effective(asked);
  int tiedTo = -1;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].name != name) continue;
    if (parameters_[i].chunk == chunk_) return parameters_[i].value;
    tiedTo = static_cast<int>(i);
  }
  const bool sharded = options_.zero > 0 && dataRanks(layout) > 1;
  Parameter p{.name = name,
              .chunk = chunk_,
              .layout = layout,
              .stepLayout = layout,
              .local = name,
              .gradientOverTp = gradientOverTp && options_.tp > 1,
              .tiedTo = tiedTo};
  if (sharded) {
    p.stepLayout.dp = shardedDimension(name, shape, layout);
    p.local = name + ".shard";
  }
  if (tiedTo < 0) out_.tensors.add({.name = name, .shape = shape, .kind = "parameter"});
  const auto given = [&](const std::string& local, const Layout& at) {
    declareLocal(chunk_, local, name, shape, at, false).kind = "parameter";
    inputPiece(name, chunk_, local);
  };
  given(p.local, p.stepLayout);
  const bool gathered = sharded && options_.zero == 3;
  if (sharded && !gathered) given(name, layout);
  if (gathered) {
    declareLocal(chunk_, name, name, shape, layout, true);
    Node node = communication("all_gather", p.local, name, dataAxes(layout));
    node.attributes = {attribute("dim", p.stepLayout.dp)};
    forwardNodes(chunk_).push_back(std::move(node));
    cutPoint(chunk_, name, false);
  }
  p.value = addValue({.logical = name,
                      .local = name,
                      .shape = shape,
                      .layout = layout,
                      .chunk = chunk_,
                      .needsGradient = true,
                      .perMicrobatch = gathered,
                      .gradientSumTp = p.gradientOverTp,
                      .parameter = static_cast<int>(parameters_.size())});
  parameters_.push_back(p);
  return p.value;
}

std::vector<ValueId> Builder::apply(const std::string& op, const std::vector<ValueId>& in,
                                    const std::vector<Attribute>& attributes,
                                    const std::vector<Result>& results) {
  std::vector<std::string> logicalIn, localIn, logicalOut, localOut;
  bool needsGradient = false, sumTp = false, sumEp = false, sumCp = false;
  for (const ValueId v : in) {
    if (at(v).chunk != chunk_)
      throw std::logic_error(op + ": operand " + at(v).logical + " is on another stage");
    logicalIn.push_back(at(v).logical);
    localIn.push_back(at(v).local);
    needsGradient = needsGradient || at(v).needsGradient;
    sumTp = sumTp || at(v).gradientSumTp;
    sumEp = sumEp || at(v).gradientSumEp;
    sumCp = sumCp || at(v).gradientSumCp;
  }
  std::vector<ValueId> out;
  for (const Result& r : results) {
    const Layout layout = effective(r.layout);
    const std::string logical = r.name, local = localName(logical, layout);
    if (out_.tensors.find(logical) == nullptr)
      out_.tensors.add({.name = logical, .shape = r.shape, .dtype = r.dtype});
    declareLocal(chunk_, local, logical, r.shape, layout, true).dtype = r.dtype;
    logicalOut.push_back(logical);
    localOut.push_back(local);
    out.push_back(
        addValue({.logical = logical,
                  .local = local,
                  .shape = r.shape,
                  .layout = layout,
                  .chunk = chunk_,
                  .needsGradient = needsGradient && r.dtype.empty(),
                  // What every rank computes alike from what has entered the cut region
                  // has, like that, only its own readers' part of the gradient.
                  .gradientSumTp = sumTp && layout.tp < 0 && !layout.sumTp,
                  .gradientSumEp = sumEp && layout.gathered && layout.ep < 0 && !layout.sumEp,
                  .gradientSumCp = sumCp && layout.cp < 0,
                  .dtype = r.dtype}));
  }
  model(op, logicalIn, logicalOut, logicalAttributes(attributes, results[0].shape, options_),
        location_);
  const std::vector<Attribute> localAttributes =
      withShape(attributes, localShape(results[0].shape, results[0].layout));
  forwardNodes(chunk_).push_back({.op = op,
                                  .in = localIn,
                                  .out = localOut,
                                  .attributes = localAttributes,
                                  .location = location_});
  if (op == "dropout")
    claim(chunk_,
          localIn[0]);  // lineage says for which positions the mask is drawn, so it is always there
  for (const std::string& local : localOut) cutPoint(chunk_, local, false);
  record_.push_back({.op = op,
                     .in = in,
                     .out = out,
                     .attributes = attributes,
                     .location = location_,
                     .chunk = chunk_,
                     .layer = layer_});
  return out;
}

ValueId Builder::applyFixed(const std::string& op, const std::vector<ValueId>& in,
                            const std::vector<Attribute>& attributes, const Result& asked,
                            std::size_t place) {
  Result result = asked;
  result.layout = effective(asked.layout);
  // Every stage makes its own; the model has it once.
  const auto at = [&](const std::string& name) {
    std::vector<std::string> out(place);  // absent
    out.push_back(name);
    return out;
  };
  const bool first = out_.tensors.find(result.name) == nullptr;
  std::vector<std::string> logicalIn, localIn;
  for (const ValueId v : in) {
    logicalIn.push_back(values_[static_cast<std::size_t>(v)].logical);
    localIn.push_back(values_[static_cast<std::size_t>(v)].local);
  }
  std::string local = result.name;
  if (program(chunk_).tensors.find(local) != nullptr) local += ".chunk" + std::to_string(chunk_);
  if (first) {
    out_.tensors.add({.name = result.name, .shape = result.shape, .dtype = result.dtype});
    model(op, logicalIn, at(result.name), logicalAttributes(attributes, result.shape, options_),
          location_);
  }
  declareLocal(chunk_, local, result.name, result.shape, result.layout, true).dtype = result.dtype;
  forwardNodes(chunk_).push_back(
      {.op = op,
       .in = localIn,
       .out = at(local),
       .attributes = withShape(attributes, localShape(result.shape, result.layout)),
       .location = location_});
  cutPoint(chunk_, local, false);
  return addValue({.logical = result.name,
                   .local = local,
                   .shape = result.shape,
                   .layout = result.layout,
                   .chunk = chunk_,
                   .dtype = result.dtype});
}

void Builder::meanLoss(const std::string& op, const std::vector<ValueId>& in,
                       const std::vector<Attribute>& attributes, const std::string& name,
                       const std::string& weight) {
  std::vector<std::string> logicalIn, localIn;
  for (const ValueId v : in) {
    logicalIn.push_back(at(v).logical);
    localIn.push_back(at(v).local);
  }
  declareLogical(name, {});
  model(op, logicalIn, {name}, attributes, location_);
  const std::string own = name + ".microbatch", part = name + ".part";
  const Layout layout{.sumDp = true, .sumMb = true};
  declareLocal(chunk_, own, "", {}, {}, true);
  declareLocal(chunk_, part, name, {}, layout, true);
  if (cutVocabulary(in)) cutCrossEntropy(in, own, name);
  else
    forwardNodes(chunk_).push_back(
        {.op = op, .in = localIn, .out = {own}, .attributes = attributes, .location = location_});
  forwardNodes(chunk_).push_back({.op = "div",
                                  .in = {own},
                                  .out = {part},
                                  .attributes = {attribute("scalar", means())},
                                  .location = location_});
  cutPoint(chunk_, part, true);
  const ValueId loss = addValue({.logical = name,
                                 .local = part,
                                 .shape = {},
                                 .layout = layout,
                                 .chunk = chunk_,
                                 .needsGradient = true});
  record_.push_back({.kind = Kind::kLoss,
                     .op = op,
                     .in = in,
                     .out = {loss},
                     .attributes = attributes,
                     .location = location_,
                     .chunk = chunk_,
                     .layer = layer_,
                     .weight = weight});
}

}  // namespace shardproof::generate
