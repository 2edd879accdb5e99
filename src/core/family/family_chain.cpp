// SPDX-License-Identifier: Apache-2.0
#include "family/family_chain.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

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
  for (const FamilyMember& member : members_) {
    if (member.size % unit_ != 0) throw std::logic_error("a size is no multiple of the unit");
    expectSameEntries(*members_[0].problem, *member.problem);
    indices_.push_back(std::make_unique<PlanIndex>(*member.problem));
    if (indices_.back()->defects().empty())
      chains_.push_back(std::make_unique<ProofChain>(*indices_.back()));
  }
  for (const FamilyMember& member : members_) sizes_.push_back(member.size / unit_);
  entries_.resize(members_[0].problem->plan.lineage.size());
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
  if (!valid()) return std::nullopt;
  const std::vector<char> proved = this->proved();
  std::int64_t least = 1;
  for (std::size_t i = 0; i < chains_.size(); ++i)
    if (members_[i].problem->model.outputs.empty() || !chains_[i]->allProved(proved))
      return std::nullopt;
  for (const EntryId e : order())
    if (proved[e]) least = std::max(least, kinds_[entries_[e].kind.index()].least);
  Result result{Verdict::kEquivalent, least * unit_, kLargestSize * unit_, {}};
  for (const FamilyMember& member : members_) {
    const Capture& capture = member.problem->plan.capture;
    if (result.conditions.empty())
      result.conditions = unmetConditions(judgedAssumptions(capture, options.accept),
                                          judgedNotCompared(capture, options.allowUncompared));
  }
  if (!result.conditions.empty()) result.verdict = Verdict::kConditional;
  return result;
}

std::string FamilyChain::differs(const FamilyMember& other) const {
  try {
    expectSameEntries(problem(), *other.problem);
  } catch (const InputError& error) {
    return error.what();
  }
  if (other.size % unit_ != 0) return "the size is no multiple of " + std::to_string(unit_);
  const PlanIndex index(*other.problem);
  if (!index.defects().empty()) return "the plan cannot run, or its lineage contradicts itself";
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
