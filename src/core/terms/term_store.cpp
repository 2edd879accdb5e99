// SPDX-License-Identifier: Apache-2.0
// Storage: hash-consing in flat arrays. Equal content is the same id, so equality of terms is
// equality of ids.
#include "terms/term_store.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace shardproof {
namespace {

std::uint32_t hashOf(std::uint32_t meta, std::span<const std::uint32_t> content) {
  std::uint64_t h = 0x9e3779b97f4a7c15ULL ^ meta;
  std::size_t i = 0;
  for (; i + 1 < content.size(); i += 2) {
    h ^= content[i] | static_cast<std::uint64_t>(content[i + 1]) << 32;
    h *= 0xbf58476d1ce4e5b9ULL;
    h ^= h >> 31;
  }
  if (i < content.size()) {
    h ^= content[i];
    h *= 0xbf58476d1ce4e5b9ULL;
    h ^= h >> 31;
  }
  h *= 0x94d049bb133111ebULL;
  return static_cast<std::uint32_t>(h >> 32);
}

}  // namespace

TermAlgebra::Store::Store(Mode m, std::size_t limit)
    : mode(m), maxTerms(limit), slots(1024, Slot{0, kFree}) {
  internConstant(RationalPool::kZero);
  internConstant(RationalPool::kOne);
  append(0, static_cast<std::uint32_t>(TermKind::kNegativeInfinity));
}

void TermAlgebra::Store::requireRoom() const {
  if (nodes.size() >= maxTerms || nodes.size() >= kFree) {
    throw Unsupported("the terms exceed the memory allowed for them (" + std::to_string(maxTerms) +
                      " terms)");
  }
}

TermId TermAlgebra::Store::append(std::uint32_t data, std::uint32_t meta) {
  requireRoom();
  nodes.push_back({data, meta});
  return static_cast<TermId>(nodes.size() - 1);
}

void TermAlgebra::Store::grow() {
  LargeVector<Slot> larger(slots.size() * 2, Slot{0, kFree});
  const std::size_t mask = larger.size() - 1;
  for (const Slot& s : slots) {
    if (s.term == kFree) continue;
    std::size_t i = s.hash & mask;
    while (larger[i].term != kFree) i = (i + 1) & mask;
    larger[i] = s;
  }
  slots.swap(larger);
}

TermId TermAlgebra::Store::insertAt(std::size_t slot, std::uint32_t hash, std::uint32_t data,
                                    std::uint32_t meta) {
  const TermId id = append(data, meta);
  slots[slot] = {hash, id};
  if (++used * 4 > slots.size() * 3) grow();
  return id;
}

TermId TermAlgebra::Store::internInline(TermKind k, std::uint32_t data) {
  const std::uint32_t meta = static_cast<std::uint32_t>(k);
  const std::uint32_t hash = hashOf(meta, {&data, 1});
  const std::size_t mask = slots.size() - 1;
  std::size_t i = hash & mask;
  for (; slots[i].term != kFree; i = (i + 1) & mask) {
    if (slots[i].hash != hash) continue;
    const Node n = nodes[slots[i].term];
    if ((n.meta & kIdentity) == meta && n.data == data) return slots[i].term;
  }
  return insertAt(i, hash, data, meta);
}

TermId TermAlgebra::Store::intern(std::uint32_t meta, std::span<const std::uint32_t> content) {
  const std::uint32_t hash = hashOf(meta, content);
  const std::size_t mask = slots.size() - 1;
  std::size_t i = hash & mask;
  for (; slots[i].term != kFree; i = (i + 1) & mask) {
    if (slots[i].hash != hash) continue;
    const Node n = nodes[slots[i].term];
    // The kind and the length are part of meta, so the number of words agrees, too. (A function's
    // number of parameters is its first word.)
    if ((n.meta & kIdentity) != meta) continue;
    if (content.size() <= words.size() - n.data &&
        std::equal(content.begin(), content.end(), words.begin() + n.data))
      return slots[i].term;
  }
  if (words.size() + content.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw Unsupported("the terms exceed the memory allowed for their parts");
  }
  const std::uint32_t data = static_cast<std::uint32_t>(words.size());
  requireRoom();  // before the words: without an owner they would only waste space
  words.insert(words.end(), content.begin(), content.end());
  return insertAt(i, hash, data, meta);
}

TermId TermAlgebra::Store::internConstant(Code c) { return internInline(TermKind::kConstant, c); }

TermId TermAlgebra::Store::internEntries(std::uint32_t meta, Code constant,
                                         std::span<const Entry> entries) {
  if (entries.size() > kMaxLength)
    throw Unsupported("a term with " + std::to_string(entries.size()) +
                      " parts exceeds the memory allowed for one");
  bool unit = true;
  for (const Entry& e : entries) unit = unit && e.code == kOne;
  std::uint32_t local[17];
  const std::size_t count = entries.size() * (unit ? 1 : 2) + 1;
  std::uint32_t* out = local;
  if (count > std::size(local)) {
    payload.resize(count);
    out = payload.data();
  }
  std::size_t n = 0;
  if (constant != kZero) {
    meta |= kShifted;
    out[n++] = constant;
  }
  for (const Entry& e : entries) {
    out[n++] = e.term;
    if (!unit) out[n++] = e.code;
  }
  if (unit) meta |= kUnit;
  return intern(meta | static_cast<std::uint32_t>(entries.size() << kLengthShift), {out, n});
}

TermId TermAlgebra::Store::internSum(Code constant, std::span<const Entry> entries) {
  if (entries.empty()) return internConstant(constant);
  if (entries.size() == 1 && constant == kZero && entries[0].code == kOne) return entries[0].term;
  const std::size_t before = nodes.size();
  const TermId id = internEntries(static_cast<std::uint32_t>(TermKind::kSum), constant, entries);
  if (id == before) {
    std::uint32_t inherited = 0;
    for (const Entry& e : entries) inherited |= nodes[e.term].meta;
    nodes[id].meta |= inherited & kMasked;
  }
  return id;
}

TermId TermAlgebra::Store::internProduct(std::span<const Entry> entries) {
  if (entries.empty()) return kOneTerm;
  if (entries.size() == 1 && entries[0].code == kOne) return entries[0].term;
  const std::size_t before = nodes.size();
  const TermId id = internEntries(static_cast<std::uint32_t>(TermKind::kProduct), kZero, entries);
  if (id == before) {
    std::uint32_t inherited = 0;
    for (const Entry& e : entries) inherited |= nodes[e.term].meta;
    nodes[id].meta |= inherited & (kSpecial | kMasked);
  }
  return id;
}

TermId TermAlgebra::Store::internUnary(TermKind k, TermId argument) {
  const std::size_t before = nodes.size();
  const TermId id = internInline(k, argument);
  if (id == before && (k == TermKind::kSqrt || (kind(argument) == TermKind::kFunction &&
                                                functionOf(argument) == ops::Function::kLog))) {
    nodes[id].meta |= kSpecial;
  }
  return id;
}

TermId TermAlgebra::Store::internFunction(ops::Function f, std::span<const std::int64_t> params,
                                          std::span<const TermId> arguments) {
  if (arguments.size() > kMaxLength || params.size() > kMaxLength)
    throw Unsupported("a function of too many arguments for the memory allowed");
  std::vector<std::uint32_t> content;
  content.reserve(1 + 2 * params.size() + arguments.size());
  content.push_back(static_cast<std::uint32_t>(f) | static_cast<std::uint32_t>(params.size()) << 8);
  for (const std::int64_t p : params) {
    content.push_back(static_cast<std::uint32_t>(static_cast<std::uint64_t>(p)));
    content.push_back(static_cast<std::uint32_t>(static_cast<std::uint64_t>(p) >> 32));
  }
  content.insert(content.end(), arguments.begin(), arguments.end());
  const std::size_t before = nodes.size();
  const TermId id = intern(static_cast<std::uint32_t>(TermKind::kFunction) |
                               static_cast<std::uint32_t>(arguments.size() << kLengthShift),
                           content);
  if (id == before) {
    if (f == ops::Function::kStep) nodes[id].meta |= kSpecial;
    if (f == ops::Function::kMaskEntry && !ops::comparesWithItself(params))
      nodes[id].meta |= kMasked;
    // The greatest of several is minus infinity only if all are, the least if any is.
    if (ops::isSymmetric(f)) {
      const auto masked = [&](TermId a) { return mayBeInfinite(a); };
      const bool infinite = f == ops::Function::kMaximum
                                ? std::all_of(arguments.begin(), arguments.end(), masked)
                                : std::any_of(arguments.begin(), arguments.end(), masked);
      if (infinite) nodes[id].meta |= kMasked;
    }
  }
  return id;
}

TermId TermAlgebra::Store::internIndicator(TermId index, std::int64_t value) {
  const std::uint64_t v = static_cast<std::uint64_t>(value);
  const std::uint32_t content[3] = {index, static_cast<std::uint32_t>(v),
                                    static_cast<std::uint32_t>(v >> 32)};
  const TermId id =
      intern(static_cast<std::uint32_t>(TermKind::kIndicator) | 1U << kLengthShift, content);
  nodes[id].meta |= kSpecial;
  return id;
}

TermId TermAlgebra::Store::newVariable(bool integer) {
  const TermId id = append(static_cast<std::uint32_t>(integerVariable.size()),
                           static_cast<std::uint32_t>(TermKind::kVariable));
  integerVariable.push_back(integer);
  return id;
}

TermAlgebra::Store::FunctionParts TermAlgebra::Store::functionParts(TermId t) const {
  const std::uint32_t* w = words.data() + nodes[t].data;
  FunctionParts result{static_cast<ops::Function>(*w & 0xff), {}, {}};
  const std::uint32_t params = *w++ >> 8;
  for (std::uint32_t i = 0; i < params; ++i, w += 2) {
    result.parameters.push_back(
        static_cast<std::int64_t>(w[0] | static_cast<std::uint64_t>(w[1]) << 32));
  }
  result.arguments.assign(w, w + length(t));
  return result;
}

std::int64_t TermAlgebra::Store::indicatorValue(TermId t) const {
  const std::uint32_t* w = words.data() + nodes[t].data;
  return static_cast<std::int64_t>(w[1] | static_cast<std::uint64_t>(w[2]) << 32);
}

std::vector<TermId> TermAlgebra::Store::children(TermId t) const {
  std::vector<TermId> result;
  switch (kind(t)) {
    case TermKind::kSum:
    case TermKind::kProduct: {
      const Parts p = parts(t);
      for (std::uint32_t i = 0; i < p.size; ++i) result.push_back(p.term(i));
      break;
    }
    case TermKind::kExp:
    case TermKind::kSqrt:
      result.push_back(nodes[t].data);
      break;
    case TermKind::kFunction:
      result = functionParts(t).arguments;
      break;
    case TermKind::kIndicator:
      result.push_back(indicatorIndex(t));
      break;
    case TermKind::kConstant:
    case TermKind::kNegativeInfinity:
    case TermKind::kVariable:
      break;
  }
  return result;
}

std::size_t TermAlgebra::Store::memoryBytes() const {
  std::size_t bytes = nodes.capacity() * sizeof(Node) + words.capacity() * sizeof(std::uint32_t) +
                      slots.capacity() * sizeof(Slot);
  bytes += rationals.memoryBytes() + integerVariable.capacity() / 8 +
           payload.capacity() * sizeof(std::uint32_t);
  for (const auto& s : spare) bytes += s->capacity() * sizeof(Entry);
  // A bucket pointer, a link and the pair for each memoised term.
  bytes += primitives.size() * (sizeof(Primitive) + 24) + (expanded.size() + leading.size()) * 24;
  return bytes;
}

}  // namespace shardproof
