// SPDX-License-Identifier: Apache-2.0
#include "diagnose/words.h"
#include "ops/collectives.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "ops/registry.h"
#include "plan/mesh.h"
#include "plan/plan_index.h"
#include "report/text.h"
#include "writer/write_problem.h"

namespace shardproof::diagnose {

namespace {

struct ReductionWords {
  const char *does, *toDo, *doing;
};

ReductionWords reductionWords(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      break;
    case Reduction::kMean:
      return {"takes the mean", "take the mean", "taking the mean"};
    case Reduction::kMax:
      return {"takes the largest", "take the largest", "taking the largest"};
    case Reduction::kMin:
      return {"takes the smallest", "take the smallest", "taking the smallest"};
  }
  return {"adds up", "add up", "adding up"};
}

const Program& programOf(const Problem& full, NodeRef ref) {
  return full.plan.programs[ref.program];
}
const Node& nodeOf(const Problem& full, NodeRef ref) {
  return programOf(full, ref).graph.nodes[ref.node];
}

std::string opOf(const Problem& full, NodeRef ref) {
  const Node& node = nodeOf(full, ref);
  if (node.communication < 0) return ops::Registry::instance().at(node.op).name;
  return ops::communicationName(programOf(full, ref).communications[node.communication].kind);
}

std::string axesText(const Problem& full, const std::vector<std::int32_t>& axes) {
  std::string text;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (i > 0) text += i + 1 == axes.size() ? " and " : ", ";
    text += full.plan.mesh[axes[i]].name;
  }
  return text.empty() ? "single ranks" : text;
}

std::string article(const std::string& word) {
  return (std::string("aeiou").find(word[0]) != std::string::npos ? "an " : "a ") + word;
}

// As the file calls it.
std::string nameOf(const Graph& g, const Names& names, TensorId tensor) {
  const TensorId other = g.tensors[tensor].standsFor;
  return names.text(g.tensors[other.valid() ? other : tensor].name);
}

std::string valueText(const AttributeValue& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* r = std::get_if<Rational>(&value))
    return hasDecimal(*r) ? decimalText(*r) : r->toString();
  if (const auto* s = std::get_if<std::string>(&value)) return "\"" + *s + "\"";
  std::string text = "[";
  for (const std::int64_t v : std::get<std::vector<std::int64_t>>(value))
    text += (text.size() > 1 ? ", " : "") + std::to_string(v);
  return text + "]";
}

// A tensor by its name; a constant that is one number, of which a front end made the name, as that.
std::string quoted(const Graph& g, const Names& names, TensorId tensor) {
  const std::string name = nameOf(g, names, tensor);
  const std::int32_t constant = g.tensors[tensor].constant;
  if (name.starts_with("%") && constant >= 0 && g.constants[constant]->fill)
    return "the number " + valueText(g.constants[constant]->elements.front());
  return "`" + name + "`";
}

std::string localName(const Problem& full, NodeRef ref, TensorId tensor) {
  return quoted(programOf(full, ref).graph, full.names, tensor);
}

std::string operandText(const Problem& full, NodeRef ref, const Operand& o) {
  std::string text = nameOf(programOf(full, ref).graph, full.names, o.tensor);
  if (o.microbatch.isOne()) text += "#" + std::to_string(o.microbatch.number());
  return "`" + text + "`";
}

// What an operand is, and what the edit makes of it.
std::pair<std::string, std::string> operandTexts(const Problem& full, NodeRef ref,
                                                 const Edit& edit) {
  const Graph& g = programOf(full, ref).graph;
  const Operand& o = g.in(nodeOf(full, ref))[edit.index];
  const std::string match = operandText(full, ref, o);
  if (edit.ownMicrobatch) return {match, localName(full, ref, o.tensor) + " of its own microbatch"};
  Operand other = o;
  if (edit.tensor >= 0) {
    other.tensor = edit.tensor;
    if (!g.tensors[edit.tensor].perMicrobatch) other.microbatch = Microbatch::none();
  }
  if (edit.microbatch) other.microbatch = Microbatch::of(*edit.microbatch);
  return {match, operandText(full, ref, other)};
}

std::string collectiveText(const Problem& full, const Edit& edit) {
  return std::string(edit.communication == Communication::kReduceScatter ? "a " : "an ") +
         ops::communicationName(edit.communication) +
         (edit.reduction == Reduction::kMax ? " of the largest over " : " over ") +
         axesText(full, edit.axes);
}

// What an attribute is and what the edit makes of it.
std::pair<std::string, std::string> attributeTexts(const Problem& full, const Edit& edit) {
  // The copy that changes: one of a line may have the value already.
  for (const NodeRef ref : edit.nodes) {
    const Attributes& own = full.attributes.at(nodeOf(full, ref).attributes);
    const auto it = own.find(edit.attribute);
    if (it == own.end()) continue;
    AttributeValue value = it->second;
    if (edit.from) {
      const Graph& g =
          edit.from->program < 0 ? full.model.graph : full.plan.programs[edit.from->program].graph;
      const Attributes& theirs = full.attributes.at(g.nodes[edit.from->node].attributes);
      const auto other = theirs.find(edit.attribute);
      if (other == theirs.end()) continue;
      value = other->second;
    } else if (auto* number = std::get_if<Rational>(&value)) {
      *number = *number * Rational(edit.num) / Rational(edit.den) + Rational(edit.plus);
    } else if (auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
      if (list->size() == 1) list->front() += edit.plus;
    }
    if (value != it->second) return {valueText(it->second), valueText(value)};
  }
  return {};
}

NodeRef changed(const Problem& full, const Edit& edit) {
  if (edit.kind != Edit::Kind::kAttribute || !edit.from) return edit.nodes.front();
  const Graph& g =
      edit.from->program < 0 ? full.model.graph : full.plan.programs[edit.from->program].graph;
  const Attributes& theirs = full.attributes.at(g.nodes[edit.from->node].attributes);
  for (const NodeRef ref : edit.nodes) {
    const Attributes& own = full.attributes.at(nodeOf(full, ref).attributes);
    const auto a = own.find(edit.attribute);
    const auto b = theirs.find(edit.attribute);
    if (a != own.end() && b != theirs.end() && a->second != b->second) return ref;
  }
  return edit.nodes.front();
}

// Whether a location has "FILE:LINE".
bool namesLine(const std::string& location) {
  for (std::size_t at = location.find(':'); at != std::string::npos;
       at = location.find(':', at + 1))
    if (at > 0 && at + 1 < location.size() && std::isdigit(location[at + 1]) != 0) return true;
  return false;
}

std::string resultName(const Problem& full, const Edit& edit) {
  const NodeRef ref = edit.nodes.front();
  return localName(full, ref, programOf(full, ref).graph.out(nodeOf(full, ref))[edit.index]);
}

}  // namespace

NodePlace placeOf(const Problem& full, NodeRef ref) {
  NodePlace place;
  place.pointer = full.plan.nodePointer(ref.program, ref.node);
  place.op = opOf(full, ref);
  if (nodeOf(full, ref).location) place.location = full.names.text(nodeOf(full, ref).location);
  return place;
}

std::string nodeText(const Problem& full, NodeRef ref) {
  const NodePlace place = placeOf(full, ref);
  // A line of the user's program tells more than a place in a file that was made of it.
  if (namesLine(place.location)) return "the " + place.op + " at " + place.location;
  return place.pointer + " (" + place.op + (place.location.empty() ? "" : " at " + place.location) +
         ")";
}

std::string faultText(const Problem& full, const Edit& edit) {
  const NodeRef ref = changed(full, edit);
  const std::string node = nodeText(full, ref);
  const Graph& g = programOf(full, ref).graph;
  const Node& n = nodeOf(full, ref);
  switch (edit.kind) {
    case Edit::Kind::kRedefine:
      if (edit.make == Edit::Make::kCollective)
        return collectiveText(full, edit) +
               (edit.tensor < 0 ? " is missing after " + node : " is missing, in place of " + node);
      if (edit.make == Edit::Make::kScale)
        return "a factor of " + std::to_string(edit.num) +
               (edit.den == 1 ? "" : "/" + std::to_string(edit.den)) + " is missing after " + node;
      if (edit.make == Edit::Make::kAdd)
        return localName(full, edit.nodes.front(), edit.tensor) + " is not added at " + node;
      return node + " is one too many";
    case Edit::Kind::kOperand: {
      const auto [match, wanted] = operandTexts(full, ref, edit);
      return node + " reads " + match + " where it has to read " + wanted;
    }
    case Edit::Kind::kExchangeOperands:
    case Edit::Kind::kExchangeResults:
      return node + (edit.kind == Edit::Kind::kExchangeOperands ? " reads " : " makes ") +
             (edit.kind == Edit::Kind::kExchangeOperands
                  ? operandText(full, ref, g.in(n)[edit.index]) + " and " +
                        operandText(full, ref, g.in(n)[edit.other])
                  : localName(full, ref, g.out(n)[edit.index]) + " and " +
                        localName(full, ref, g.out(n)[edit.other])) +
             " in the wrong order";
    case Edit::Kind::kAttribute: {
      const auto [match, wanted] = attributeTexts(full, edit);
      return node + " has " + edit.attribute + " " + match + " where it has to have " + wanted;
    }
    case Edit::Kind::kSpec: {
      const CommunicationSpec& spec = programOf(full, ref).communications[n.communication];
      if (edit.communication != spec.kind)
        return node + " is there where " + collectiveText(full, edit) + " belongs";
      if (edit.axes != spec.groupAxes)
        return node + " runs over " +
               (spec.groupAt.empty() ? axesText(full, spec.groupAxes) : "other ranks") +
               " where it has to run over " + axesText(full, edit.axes);
      if (edit.reduction != spec.reduction)
        return node + " " + reductionWords(spec.reduction).does + " where it has to " +
               reductionWords(edit.reduction).toDo;
      return node + " works along dimension " + std::to_string(spec.dim) +
             " where it has to along " + std::to_string(edit.dim);
    }
    case Edit::Kind::kPeer:
      return node + " sends to, or receives from, the wrong rank";
    case Edit::Kind::kSwap:
      return node + " works on the result of an operator that has to come after it";
    case Edit::Kind::kTag:
      return node + " meets the message of another microbatch";
  }
  return {};
}

std::string fixText(const Problem& full, const Edit& edit) {
  const NodeRef ref = changed(full, edit);
  const std::string node = nodeText(full, ref);
  const Graph& g = programOf(full, ref).graph;
  const Node& n = nodeOf(full, ref);
  switch (edit.kind) {
    case Edit::Kind::kRedefine: {
      const std::string result = resultName(full, edit);
      if (edit.make == Edit::Make::kCollective) {
        if (edit.tensor < 0)
          return collectiveText(full, edit) + " follows " + node + " and makes " + result;
        return result + " is " + collectiveText(full, edit) + " of " +
               localName(full, edit.nodes.front(), edit.tensor) + ", in place of " + node;
      }
      if (edit.make == Edit::Make::kScale)
        return result + " is multiplied by " + std::to_string(edit.num) +
               (edit.den == 1 ? "" : "/" + std::to_string(edit.den)) + " after " + node;
      if (edit.make == Edit::Make::kAdd)
        return node + " adds " + localName(full, edit.nodes.front(), edit.tensor) + " as well";
      return result + " is " + localName(full, edit.nodes.front(), edit.tensor) +
             " itself, without " + node;
    }
    case Edit::Kind::kOperand: {
      const auto [match, wanted] = operandTexts(full, ref, edit);
      return node + " reads " + wanted + " instead of " + match;
    }
    case Edit::Kind::kExchangeOperands:
      return "the operands " + operandText(full, ref, g.in(n)[edit.index]) + " and " +
             operandText(full, ref, g.in(n)[edit.other]) + " of " + node + " are exchanged";
    case Edit::Kind::kExchangeResults:
      return "the results " + localName(full, ref, g.out(n)[edit.index]) + " and " +
             localName(full, ref, g.out(n)[edit.other]) + " of " + node + " are exchanged";
    case Edit::Kind::kAttribute: {
      const auto [from, to] = attributeTexts(full, edit);
      return node + " has " + edit.attribute + " " + to + " instead of " + from +
             (edit.andAttribute.empty() ? "" : ", and " + edit.andAttribute + " as far away");
    }
    case Edit::Kind::kSpec: {
      const CommunicationSpec& spec = programOf(full, ref).communications[n.communication];
      std::string text = node;
      if (edit.communication != spec.kind)
        text += " is " + article(ops::communicationName(edit.communication)) + " instead";
      if (edit.axes != spec.groupAxes)
        text += " runs over " + axesText(full, edit.axes) + " instead of " +
                (spec.groupAt.empty() ? axesText(full, spec.groupAxes) : "the listed ranks");
      if (edit.reduction != spec.reduction)
        text += std::string(" ") + reductionWords(edit.reduction).does + " instead of " +
                reductionWords(spec.reduction).doing;
      if (edit.dim != spec.dim)
        text += " works along dimension " + std::to_string(edit.dim) + " instead of " +
                std::to_string(spec.dim);
      return text;
    }
    case Edit::Kind::kPeer: {
      std::string text =
          "both ends of the messages `" +
          full.names.text(programOf(full, ref).communications[n.communication].comm) + "` (" +
          node + ")";
      if (!edit.axes.empty()) text += " have the same " + axesText(full, edit.axes) + " coordinate";
      for (const auto& [axis, c] : edit.peer)
        text += " name " + full.plan.mesh[axis].name + "=" + std::to_string(c);
      return text;
    }
    case Edit::Kind::kSwap:
      return node + " comes before the operator that makes its operand " +
             operandText(full, ref, g.in(n)[0]);
    case Edit::Kind::kTag:
      return "the messages `" +
             full.names.text(programOf(full, ref).communications[n.communication].comm) +
             "` have no tags, so that each meets that of its own microbatch";
  }
  return {};
}

Described describe(const Image& image, const Search::Failing& failing, const Finder& finder,
                   const Match& match, const std::vector<std::int64_t>& ranks, const Edit* edit) {
  const Problem& full = image.full();
  const Numbers& numbers = *failing.numbers;
  const std::size_t c = failing.claims.front();
  const executor::Claim& claim = numbers.claim(c);
  const auto& programs = numbers.setup().programs;
  const auto& part = claim.parts.front();
  const TensorId t = programs.layout(part.rank).tensorOfSlot[part.slot];
  const std::string local =
      quoted(programs.program(part.rank).graph, numbers.setup().problem.names, t);
  Match expected;
  expected.kind = Match::Kind::kBox;
  expected.tensor = numbers.setup().problem.plan.lineage[claim.entry].tensor;
  expected.low = claim.low;
  expected.extent = claim.extent;
  // Where ranks differ in what they have to hold, no box is that of all of them.
  const bool several =
      std::any_of(failing.claims.begin(), failing.claims.end(), [&](std::size_t o) {
        return numbers.claim(o).low != claim.low || numbers.claim(o).extent != claim.extent;
      });
  const bool one = ranks.size() == 1;
  const std::string parts = std::string(one ? "parts of " : "their parts of ");
  const std::string wanted =
      several ? parts + "`" + finder.tensorName(expected.tensor) + "`" : finder.boxText(expected);
  const std::string who = (ranks.size() == 1 ? "rank " : "ranks ") + formatRanks(ranks);
  const std::string hold = one ? " holds " : " hold ";
  // After which node: the one that a fix is at, or that makes the local tensor.
  std::string after;
  const NodeRef near = edit                    ? edit->nodes.front()
                       : failing.nodes.empty() ? NodeRef{}
                                               : image.fullNode(failing.nodes.front());
  if (near.program >= 0) after = " after " + nodeText(full, near);
  const std::string fault = edit ? faultText(full, *edit) : std::string();
  const auto with = [&](const std::string& sentence) {
    return fault.empty() ? sentence : sentence + ": " + fault;
  };
  switch (match.kind) {
    case Match::Kind::kPartial: {
      const std::string sentence = who + (one ? " uses " : " use ") + local + " as complete" +
                                   after + ", but it is a partial sum over " +
                                   finder.axesText(match.axes) + " of " + wanted;
      if (!edit)
        return {"partial-sum",
                sentence + ": a reduction over " + finder.axesText(match.axes) + " is missing"};
      if (edit->kind == Edit::Kind::kRedefine && edit->make == Edit::Make::kCollective)
        return {"partial-sum", sentence + ": " + collectiveText(full, *edit) + " is missing"};
      return {"partial-sum", with(sentence)};
    }
    case Match::Kind::kMultiple:
      return {"scaled", with(who + hold + wanted + " scaled by " + finder.ratioText(match.ratio) +
                             (claim.parts.size() > 1 ? " as the sum of their parts " : " as ") +
                             local + (fault.empty() ? after : ""))};
    case Match::Kind::kZero:
      return {"zero", with(who + hold + "0 as " + local + " where " + wanted + " belongs")};
    case Match::Kind::kBox: {
      if (match.tensor != expected.tensor)
        return {"other-tensor",
                with(who + hold +
                     (several ? "parts of `" + finder.tensorName(match.tensor) + "`"
                              : finder.boxText(match)) +
                     " as " + local + " where " + wanted + (several ? " belong" : " belongs"))};
      const MeshView mesh(full.plan.mesh);
      const std::int64_t own = image.fullRanks({part.rank}).front();
      std::string whose;
      for (std::size_t o = 0; o < numbers.claims() && whose.empty(); ++o) {
        if (!(numbers.expected(o) == numbers.actual(c)) || numbers.claim(o).low == claim.low)
          continue;
        const std::int64_t other = image.fullRanks({numbers.claim(o).parts.front().rank}).front();
        for (std::int32_t a = 0; a < mesh.axes(); ++a)
          if (mesh.coordinate(Rank(other), a) != mesh.coordinate(Rank(own), a))
            whose += (whose.empty() ? "" : ", ") + full.plan.mesh[a].name + " rank " +
                     std::to_string(mesh.coordinate(Rank(other), a));
        if (numbers.claim(o).microbatch != claim.microbatch && numbers.claim(o).microbatch >= 0)
          whose += std::string(whose.empty() ? "" : ", ") + "microbatch " +
                   std::to_string(image.fullMicrobatch(numbers.claim(o).microbatch));
      }
      const std::string place =
          finder.boxText(match) + (whose.empty() ? "" : ", which is the part of " + whose + ",") +
          " where " + (image.isFull() ? finder.boxText(expected) : "another part") + " belongs";
      if (!several) return {"other-place", with(who + hold + place + " as " + local)};
      return {
          "other-place",
          with(who + hold + "other parts of `" + finder.tensorName(match.tensor) + "` as " + local +
               " than they have to; rank " + std::to_string(own) +
               (claim.microbatch >= 0
                    ? " for microbatch " + std::to_string(image.fullMicrobatch(claim.microbatch))
                    : "") +
               " has " + place)};
    }
    case Match::Kind::kSummed:
      return {"summed", with(who + hold + finder.text(match) + " as " + local + " where " + wanted +
                             " belongs")};
    case Match::Kind::kLess:
      return {"term-missing",
              with(who + hold + wanted + " without the term `" + match.local + "` as " + local)};
    case Match::Kind::kMore:
      return {"term-twice", with(who + hold + wanted + " with the term `" + match.local +
                                 "` once too often as " + local)};
    case Match::Kind::kPermuted:
      return {"order",
              with(who + hold + "the elements of " + wanted + " in another order as " + local)};
    case Match::Kind::kUniform:
    case Match::Kind::kUnknown:
      break;
  }
  std::string sentence =
      local + " on " + who + " is not " + (local == wanted ? "the model's" : wanted);
  if (!fault.empty()) return {"other", with(sentence)};
  if (failing.turning.empty())
    return {"other", sentence + after + ", nor anything else of the model"};
  sentence +=
      ", nor anything else of the model; what is read is the model's, what is made is not, at ";
  constexpr std::size_t kMostTold = 3;
  std::set<std::string> told;
  for (const NodeRef ref : failing.turning) {
    // Copies in other programs are the same line.
    const std::string text = nodeText(full, image.fullNode(ref));
    const std::size_t inProgram = text.find("/nodes/");
    if (!told.insert(inProgram == std::string::npos ? text : text.substr(inProgram)).second)
      continue;
    if (told.size() > kMostTold) {
      sentence += " and others";
      break;
    }
    sentence += (told.size() > 1 ? ", " : "") + text;
  }
  return {"other", sentence};
}

}  // namespace shardproof::diagnose
