// SPDX-License-Identifier: Apache-2.0
#include "family/family_chain.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "ops/registry.h"
#include "prover/model_facts.h"
#include "shardproof/error.h"

namespace shardproof {

namespace {

std::string keyOf(const std::vector<std::string>& forms) {
  std::string key;
  for (const std::string& form : forms) key += std::to_string(form.size()) + ":" + form;
  return key;
}

void expectSameEntries(const Problem& a, const Problem& b) {
  const auto refuse = [&](const std::string& what) {
    throw InputError(b.plan.file, "",
                     what + " (as in " + a.plan.file +
                         "): plans of one family have the same lineage entries in the same order, "
                         "and the same outputs");
  };
  const auto nameOf = [](const Problem& p, std::int64_t t) {
    return p.names.text(p.model.graph.tensors[TensorId(t)].name);
  };
  if (a.plan.lineage.size() != b.plan.lineage.size())
    refuse("found " + std::to_string(b.plan.lineage.size()) + " lineage entries, expected " +
           std::to_string(a.plan.lineage.size()));
  for (const EntryId e : firstIds<EntryId>(a.plan.lineage.size())) {
    const LineageEntry &own = a.plan.lineage[e], &other = b.plan.lineage[e];
    if (own.role != other.role || nameOf(a, own.tensor) != nameOf(b, other.tensor))
      refuse("found at /lineage/" + std::to_string(e) + " an entry of " + nameOf(b, other.tensor) +
             ", expected one of " + nameOf(a, own.tensor) + " and of the same role");
  }
  const auto outputsOf = [&](const Problem& p) {
    std::vector<std::string> names;
    for (const auto t : p.model.outputs) names.push_back(nameOf(p, t));
    return names;
  };
  if (outputsOf(a) != outputsOf(b)) refuse("found other outputs of the model");
}

}  // namespace

FamilyChain::~FamilyChain() = default;

FamilyChain::FamilyChain(std::vector<FamilyMember> members, std::int64_t unit)
    : members_(std::move(members)), unit_(unit) {
  if (members_.size() < StageFamily::kLeastMembers)
    throw std::logic_error("a family needs plans of three sizes");
  std::sort(members_.begin(), members_.end(),
            [](const FamilyMember& a, const FamilyMember& b) { return a.size < b.size; });
  for (const FamilyMember& member : members_) sizes_.push_back(member.size / unit_);
  for (const FamilyMember& member : members_) {
    if (member.size % unit_ != 0) throw std::logic_error("a size is no multiple of the unit");
    expectSameEntries(*members_[0].problem, *member.problem);
    indices_.push_back(std::make_unique<PlanIndex>(*member.problem));
    if (indices_.back()->defects().empty())
      chains_.push_back(std::make_unique<ProofChain>(*indices_.back()));
  }
  entries_.resize(members_[0].problem->plan.lineage.size());
  if (chains_.size() < members_.size()) {
    obstacle_ = "a plan cannot run, or its lineage contradicts itself";
    return;
  }
  try {
    expectModelsAlike();
  } catch (const Unsupported& error) {
    obstacle_ = error.what();
  }
}

// Facts of a node's results follow from its operator and attributes, from the facts of its operands
// and, of constants and of what may be minus infinity, from their elements. So an attribute of the
// model may depend on the size only if it is a factor of one sign or a shape, and reads no mask. (A
// summand decides the sign of a constant and it.)
void FamilyChain::expectModelsAlike() const {
  const Problem& first = *members_[0].problem;
  const Graph& graph = first.model.graph;
  const ModelFacts facts = modelFacts(first);
  const auto otherOperators = [] {
    return Unsupported("the model is made of other operators at other sizes");
  };
  for (const FamilyMember& member : members_) {
    const Graph& own = member.problem->model.graph;
    if (own.nodes.size() != graph.nodes.size() || own.tensors.size() != graph.tensors.size())
      throw otherOperators();
    if (modelFacts(*member.problem) != facts)
      throw Unsupported("what is known of the model's tensors depends on the size");
  }
  const auto valuesOf = [&](auto&& number) {
    std::vector<Rational> values;
    for (const FamilyMember& member : members_) values.push_back(number(*member.problem));
    return values;
  };
  for (const TensorId t : firstIds<TensorId>(graph.tensors.size())) {
    if (graph.tensors[t].kind != TensorKind::kConstant) continue;
    const auto constantOf = [&](const Problem& p) -> const ConstantValue& {
      const Graph& own = p.model.graph;
      if (own.tensors[t].kind != TensorKind::kConstant) throw otherOperators();
      return *own.constants[own.tensors[t].constant];
    };
    // A node that reads one has facts that follow from its elements.
    for (const FamilyMember& member : members_)
      if (!(constantOf(*member.problem) == constantOf(first)))
        throw Unsupported("a constant of the model depends on the size");
  }
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto attributesOf = [&](const Problem& p) -> const Attributes& {
      return p.attributes.at(p.model.graph.nodes[n].attributes);
    };
    const Attributes& attributes = attributesOf(first);
    const std::string& op = ops::Registry::instance().at(graph.nodes[n].op).name;
    const bool infinite =
        std::any_of(graph.in(graph.nodes[n]).begin(), graph.in(graph.nodes[n]).end(),
                    [&](const Operand& o) { return o.present() && facts[o.tensor].mayBeInfinite; });
    // Which entries of a mask a node reads may depend on the mask's size, as the last one does.
    const bool everywhere = ops::Registry::instance().at(graph.nodes[n].op).traits.elementwise ||
                            op.starts_with("softmax") || op.starts_with("apply_mask") ||
                            op == "cat";
    for (const FamilyMember& member : members_) {
      const Graph& other = member.problem->model.graph;
      for (const Operand& o : graph.in(graph.nodes[n]))
        if (!everywhere && o.present() && facts[o.tensor].mayBeInfinite &&
            other.tensors[o.tensor].shape != graph.tensors[o.tensor].shape)
          throw Unsupported("the model's " + op + " reads a mask whose shape depends on the size");
    }
    for (const FamilyMember& member : members_) {
      const Node& own = member.problem->model.graph.nodes[n];
      if (own.op != graph.nodes[n].op || attributesOf(*member.problem).size() != attributes.size())
        throw otherOperators();
    }
    for (const auto& attribute : attributes) {
      const std::string& key = attribute.first;
      const AttributeValue& value = attribute.second;
      bool same = true;
      for (const FamilyMember& member : members_) {
        const auto it = attributesOf(*member.problem).find(key);
        if (it == attributesOf(*member.problem).end() || it->second.index() != value.index())
          throw otherOperators();
        same = same && it->second == value;
      }
      if (same) continue;
      const std::string what = "attribute '" + key + "' of " + op + " in the model";
      const bool summand = key == "scalar" && (op.starts_with("add") || op.starts_with("sub"));
      if (!mayDependOnSize(op, key) || summand) throw Unsupported(what + " depends on the size");
      if (infinite) throw Unsupported(what + " depends on the size, and reads a mask");
      if (std::holds_alternative<Rational>(value))
        expectOneSign(functionOf(valuesOf([&](const Problem& p) {
                                   return std::get<Rational>(attributesOf(p).at(key));
                                 }),
                                 sizes_),
                      what);
    }
  }
}

std::string FamilyChain::tensorName(EntryId entry) const {
  const Problem& p = problem();
  return p.names.text(p.model.graph.tensors[p.plan.lineage[entry].tensor].name);
}

void FamilyChain::cut(EntryId e, bool collapse, const Budget* budget) {
  Entry& entry = entries_[e];
  entry = {};
  entry.collapse = collapse;
  CutChoice choice;
  choice.collapse = collapse;
  choice.budget = budget;
  std::vector<std::string> forms;
  try {
    for (const auto& chain : chains_) {
      CutStage cut = chain->cut(e, choice);
      if (forms.empty()) entry.used = cut.stage().usedEntries;
      else if (entry.used != cut.stage().usedEntries)
        throw Unsupported("the stage assumes other lineage at other sizes");
      forms.push_back(canonicalForm(cut.stage()));
      chain->enter(cut, true);  // it assumes earlier entries only
    }
  } catch (const Unsupported& error) {
    entry.failure = error.what();
    return;
  } catch (const CyclicWait& error) {
    entry.failure = error.what();
    return;
  }
  const auto [it, isNew] = kindOfKey_.emplace(keyOf(forms), KindId(kinds_.size()));
  if (isNew) kinds_.push_back({std::move(forms), 0});
  entry.kind = it->second;
}

StageFamily FamilyChain::family(KindId kind) const {
  return StageFamily(kinds_[kind.index()].forms, sizes_);
}

const std::string* FamilyChain::onlyForm(KindId kind) const {
  const auto& forms = kinds_[kind.index()].forms;
  return std::all_of(forms.begin(), forms.end(),
                     [&](const std::string& form) { return form == forms[0]; })
             ? &forms[0]
             : nullptr;
}

void FamilyChain::prove(KindId kind, const FamilyProof& proof) {
  if (!proof.isOf(family(kind))) throw std::logic_error("a proof of other stages");
  kinds_[kind.index()].least = proof.least();
}

void FamilyChain::prove(KindId kind, const Proof& proof) {
  const std::string* form = onlyForm(kind);
  if (form == nullptr || !proof.isOf(*form)) throw std::logic_error("a proof of another stage");
  kinds_[kind.index()].least = 1;
}

// Assumed entries come strictly earlier, at every member's size.
std::vector<char> FamilyChain::proved() const {
  std::vector<char> proved(entries_.size(), 0);
  for (const EntryId e : order()) {
    const Entry& entry = entries_[e];
    proved[e] = entry.kind.valid() && holds(entry.kind) &&
                std::all_of(entry.used.begin(), entry.used.end(),
                            [&](EntryId f) { return proved[f] != 0; });
  }
  return proved;
}

std::optional<FamilyChain::Result> FamilyChain::result(const VerifyOptions& options) const {
  if (!obstacle_.empty()) return std::nullopt;
  const std::vector<char> proved = this->proved();
  std::int64_t least = 1;
  for (std::size_t i = 0; i < chains_.size(); ++i)
    if (members_[i].problem->model.outputs.empty() || !chains_[i]->allProved(proved))
      return std::nullopt;
  for (const EntryId e : order())
    if (proved[e]) least = std::max(least, kinds_[entries_[e].kind.index()].least);
  Result result{Verdict::kEquivalent, least * unit_, kLargestSize * unit_, {}};
  for (const FamilyMember& member : members_)
    if (result.conditions.empty())
      result.conditions = unmetConditions(member.problem->plan.capture, options);
  if (!result.conditions.empty()) result.verdict = Verdict::kConditional;
  return result;
}

std::string FamilyChain::differs(const FamilyMember& other, const VerifyOptions& options) const {
  try {
    expectSameEntries(problem(), *other.problem);
  } catch (const InputError& error) {
    return error.what();
  }
  if (other.size % unit_ != 0) return "the size is no multiple of " + std::to_string(unit_);
  const PlanIndex index(*other.problem);
  if (!index.defects().empty()) return "the plan cannot run, or its lineage contradicts itself";
  const auto unmet = unmetConditions(other.problem->plan.capture, options);
  const auto own = result(options);
  if (!unmet.empty() && own && own->verdict == Verdict::kEquivalent)
    return "it is under a condition: " + unmet.front().text;
  const ProofChain chain(index);
  std::map<KindId, std::string> forms;
  for (const EntryId e : chain.order()) {
    const Entry& entry = entries_[e];
    CutChoice choice;
    choice.collapse = entry.collapse;
    try {
      const CutStage cut = chain.cut(e, choice);
      auto it = forms.find(entry.kind);
      if (it == forms.end())
        it = forms.emplace(entry.kind, canonicalForm(family(entry.kind).at(other.size / unit_)))
                 .first;
      if (cut.stage().usedEntries != entry.used || canonicalForm(cut.stage()) != it->second)
        return "the stage of " + tensorName(e) + " is another one";
    } catch (const Unsupported& error) {
      return "the stage of " + tensorName(e) + ": " + error.what();
    } catch (const CyclicWait& error) {
      return "the stage of " + tensorName(e) + ": " + error.what();
    }
  }
  return {};
}

}  // namespace shardproof
