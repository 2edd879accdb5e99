// SPDX-License-Identifier: Apache-2.0
#include "ir/suggestions.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "ops/collectives.h"
#include "ops/registry.h"
#include "util/similar.h"

namespace shardproof::ir {

namespace {

struct Slip {
  std::string_view found, suggestion;
};

constexpr std::string_view kNoEffect = "what has no effect on values is left out";
constexpr std::string_view kOperands = "operands are called `in`";
constexpr std::string_view kAttributesAre = "what is no tensor goes into `attrs`";
constexpr std::string_view kLocation = "where people wrote it is called `loc`";

constexpr Slip kFields[] = {
    {"grad_of", "`grad_of` belongs in the model"},
    {"known", "`known` belongs in the model"},
    {"outputs", "outputs of the model belong in the model, results of a node are called `out`"},
    {"per_mb", "`per_mb` belongs in the plan: a model has no microbatches"},
    {"mb", "`mb` belongs in the plan, on nodes and on parts of lineage"},
    {"comm", "`comm` belongs to communication: another operator has no partners"},
    {"group",
     "`group` belongs to collectives: send and recv name their partner by `to` and `from`"},
    {"inputs", kOperands},
    {"input", kOperands},
    {"args", "operands are called `in`, and what is no tensor goes into `attrs`"},
    {"kwargs", kAttributesAre},
    {"attributes", kAttributesAre},
    {"params", kAttributesAre},
    {"reduce", "`reduce` goes into `attrs`"},
    {"dim", "`dim` goes into `attrs`"},
    {"output", "results are called `out`"},
    {"results", "results are called `out`"},
    {"target", "the operator is called `op`"},
    {"type", "the operator is called `op`, and an element's type `dtype`"},
    {"stack_trace", kLocation},
    {"location", kLocation},
    {"line", kLocation},
    {"microbatch", "the microbatch is called `mb`"},
    {"ranks",
     "ranks are named by coordinates: `at` of a program, `group` or `group_at` of a collective"},
    {"rank", "ranks are named by coordinates: `at`"},
    {"process_group", "a group is `group` (axes) or `group_at` (members)"},
    {"dst", "the receiver is called `to`, by its coordinates"},
    {"src", "the sender is called `from`, by its coordinates"},
    {"async_op", kNoEffect},
    {"requires_grad", kNoEffect},
    {"device", kNoEffect},
    {"stride", kNoEffect},
    {"layout", kNoEffect},
    {"memory_format", kNoEffect},
    {"id", "nodes are told by their places and tensors by their names: leave it out"},
    {"name", "only files and tensors have names: leave it out, or write it as `loc` of a node"},
    {"slice", "the positions are called `box`"},
    {"offset", "by how much the box moves from rank to rank is called `step`"},
    {"partial", "axes to add up over are called `sum`"},
};

constexpr Slip kAttributes[] = {
    {"dtype", "precision is not modelled: only tensors have a dtype"},
    {"device", kNoEffect},
    {"layout", kNoEffect},
    {"memory_format", kNoEffect},
    {"pin_memory", kNoEffect},
    {"non_blocking", kNoEffect},
    {"copy", kNoEffect},
    {"inplace", "no operator works in place: give the result a name of its own"},
    {"keepdims", "write `keepdim`"},
    {"axis", "write `dim`"},
    {"axes", "write `dim`"},
    {"epsilon", "write `eps`"},
};

constexpr Slip kOperators[] = {
    {"t", "transpose"},
    {"addmm", "linear"},
    {"allreduce", "all_reduce"},
    {"allgather", "all_gather"},
    {"all_gather_into_tensor", "all_gather"},
    {"reducescatter", "reduce_scatter"},
    {"reduce_scatter_tensor", "reduce_scatter"},
    {"alltoall", "all_to_all"},
    {"isend", "send"},
    {"irecv", "recv"},
    {"detach", "identity"},
    {"clone", "identity"},
    {"contiguous", "identity"},
    {"concat", "cat"},
    {"truediv", "div"},
};

constexpr Slip kWords[] = {
    {"avg", "mean"},        {"average", "mean"},     {"add", "sum"},
    {"buffer", "constant"}, {"weight", "parameter"}, {"placeholder", "input"},
    {"goal", "output"},     {"lemma", "cut_point"},  {"intermediate", "cut_point"},
    {"fp32", "float32"},    {"fp16", "float16"},     {"bf16", "bfloat16"},
    {"i64", "int64"},       {"f32", "float32"},      {"f16", "float16"},
};

template <std::size_t N>
const Slip* slipIn(const Slip (&table)[N], std::string_view word) {
  const auto* slip = std::find_if(std::begin(table), std::end(table),
                                  [&](const Slip& s) { return s.found == word; });
  return slip == std::end(table) ? nullptr : slip;
}

std::string meant(std::string_view word) { return ", did you mean \"" + std::string(word) + "\"?"; }

// "torch.ops.aten.add.Tensor", "aten::add", "Add_" as "add".
std::string plainOperator(std::string_view op) {
  std::string name(op);
  if (const std::size_t space = name.rfind("::"); space != std::string::npos)
    name = name.substr(space + 2);
  if (const std::size_t aten = name.rfind("aten."); aten != std::string::npos)
    name = name.substr(aten + 5);
  for (const std::string_view before : {"torch.nn.functional.", "torch.distributed.", "torch."})
    if (name.starts_with(before)) name = name.substr(before.size());
  if (const std::size_t overload = name.find('.'); overload != std::string::npos)
    name = name.substr(0, overload);
  while (!name.empty() && name.back() == '_') name.pop_back();
  while (!name.empty() && name.front() == '_') name.erase(name.begin());
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

bool isOperator(std::string_view name) {
  return ops::Registry::instance().find(name).valid() ||
         ops::findCommunication(name) != Communication::kNone;
}

}  // namespace

std::string suggestField(std::string_view field, const std::vector<std::string>& known) {
  if (const Slip* slip = slipIn(kFields, field)) return ": " + std::string(slip->suggestion);
  return didYouMean(field, known);
}

std::string suggestAttribute(std::string_view op, std::string_view attribute) {
  if (op == "to" && attribute == "dtype") return ": `to` takes no dtype: precision is not modelled";
  const Slip* slip = slipIn(kAttributes, attribute);
  return slip ? ": " + std::string(slip->suggestion) : "";
}

std::string suggestOperator(std::string_view op) {
  const std::string plain = plainOperator(op);
  if (plain != op && isOperator(plain)) return meant(plain);
  if (const Slip* slip = slipIn(kOperators, plain)) return meant(slip->suggestion);
  std::vector<std::string> known = ops::Registry::instance().similar(plain);
  for (const ops::Collective& collective : ops::collectives()) known.emplace_back(collective.name);
  return didYouMean(plain, known);
}

std::string suggestWord(std::string_view word, const std::vector<std::string>& known) {
  const auto isKnown = [&](std::string_view w) {
    return std::find(known.begin(), known.end(), w) != known.end();
  };
  if (const Slip* slip = slipIn(kWords, word); slip && isKnown(slip->suggestion))
    return meant(slip->suggestion);
  const std::size_t dot = word.rfind('.');  // torch.float32
  if (dot != std::string_view::npos && isKnown(word.substr(dot + 1)))
    return meant(word.substr(dot + 1));
  return didYouMean(word, known);
}

std::string suggestText(std::string_view reason) {
  // "...; last read: 'N'": all of the value up to the character that cannot be.
  const std::string_view mark = "last read: '";
  const std::size_t at = reason.find(mark);
  const std::string_view read = at == std::string_view::npos ? "" : reason.substr(at + mark.size());
  const auto has = [&](std::string_view part) {
    return reason.find(part) != std::string_view::npos;
  };
  const std::size_t end = read.rfind('\'');
  const std::string_view last = read.substr(0, end);
  const auto ends = [&](std::string_view tail) { return last.ends_with(tail); };
  if (has("unexpected end of input") || has("missing closing quote"))
    return ": the file is cut off";
  if (ends("N") || ends("I") || ends("-I"))
    return ": JSON has no NaN and no infinity (Python writes them unless allow_nan=False)";
  if (ends("T") || ends("F")) return ": JSON has true and false (was a Python dict printed?)";
  if (ends("'")) return ": JSON has double quotes (was a Python dict printed?)";
  if (has("unexpected ']'") || has("unexpected '}'")) return ": there is a comma too many";
  if (ends("/")) return ": JSON has no comments";
  return "";
}

}  // namespace shardproof::ir
