// SPDX-License-Identifier: Apache-2.0
#include "generate/options.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>

namespace shardproof::generate {
namespace {

struct Preset {
  const char* architecture;
  const char* size;
  std::int64_t layers, dim, hidden, heads, kvHeads, sequence, vocabulary;
};

// gpt: GPT-2 (Radford et al. 2019, table 2; the sizes of the released models) and GPT-3 (arXiv
// 2005.14165, table 2.1, where 1.3B has 24 heads of 128, which do not make its width of 2048, and
// 13B a width of 5140, which 40 heads of 128 do not make: 16 heads and 5120 here). llama3: arXiv
// 2407.21783, table 3.
//
// mixtral: arXiv 2401.04088, table 1, and the configuration of the released 8x22B. qwen3-moe: arXiv
// 2505.09388, table 2, and the released configurations. gpt-oss: arXiv 2508.10925, table 1, with
// sequences of 4096, which positions cover before they are extended.
//
// deepseek-v3: 16B is DeepSeek-V2-Lite, 236B DeepSeek-V2 (arXiv 2405.04434, section 3.1.2 and
// appendix B), 671B DeepSeek-V3 (arXiv 2412.19437, section 4.2), with sequences of 16384.
constexpr Preset kPresets[] = {
    {"mlp", "small", 2, 16, 32, 0, 0, 0, 0},
    {"gpt", "small", 12, 768, 0, 12, 0, 1024, 50257},
    {"gpt", "medium", 24, 1024, 0, 16, 0, 1024, 50257},
    {"gpt", "large", 36, 1280, 0, 20, 0, 1024, 50257},
    {"gpt", "xl", 48, 1600, 0, 25, 0, 1024, 50257},
    {"gpt", "125M", 12, 768, 0, 12, 0, 2048, 50257},
    {"gpt", "350M", 24, 1024, 0, 16, 0, 2048, 50257},
    {"gpt", "760M", 24, 1536, 0, 16, 0, 2048, 50257},
    {"gpt", "1.3B", 24, 2048, 0, 16, 0, 2048, 50257},
    {"gpt", "2.7B", 32, 2560, 0, 32, 0, 2048, 50257},
    {"gpt", "6.7B", 32, 4096, 0, 32, 0, 2048, 50257},
    {"gpt", "13B", 40, 5120, 0, 40, 0, 2048, 50257},
    {"gpt", "175B", 96, 12288, 0, 96, 0, 2048, 50257},
    {"llama3", "8B", 32, 4096, 14336, 32, 8, 8192, 128000},
    {"llama3", "70B", 80, 8192, 28672, 64, 8, 8192, 128000},
    {"llama3", "405B", 126, 16384, 53248, 128, 8, 8192, 128000},
    {"mixtral", "8x7B", 32, 4096, 14336, 32, 8, 32768, 32000},
    {"mixtral", "8x22B", 56, 6144, 16384, 48, 8, 65536, 32000},
    {"qwen3-moe", "30B", 48, 2048, 6144, 32, 4, 32768, 151936},
    {"qwen3-moe", "235B", 94, 4096, 12288, 64, 4, 32768, 151936},
    {"gpt-oss", "20B", 24, 2880, 2880, 64, 8, 4096, 201088},
    {"gpt-oss", "120B", 36, 2880, 2880, 64, 8, 4096, 201088},
    {"deepseek-v3", "16B", 27, 2048, 10944, 16, 0, 16384, 102400},
    {"deepseek-v3", "236B", 60, 5120, 12288, 128, 0, 16384, 102400},
    {"deepseek-v3", "671B", 61, 7168, 18432, 128, 0, 16384, 129280},
};

// Widths of heads that are not dim / heads.
struct HeadPreset {
  const char* architecture;
  std::int64_t width;
};
constexpr HeadPreset kHeadPresets[] = {{"qwen3-moe", 128}, {"gpt-oss", 64}};

struct ExpertPreset {
  const char *architecture, *size;
  std::int64_t denseLayers, experts, active, shared, hidden, groups, activeGroups, queryRank;
  bool sigmoid;
  const char* scale;
};
constexpr ExpertPreset kExpertPresets[] = {
    {"mixtral", "8x7B", 0, 8, 2, 0, 14336, 1, 1, 0, false, "1"},
    {"mixtral", "8x22B", 0, 8, 2, 0, 16384, 1, 1, 0, false, "1"},
    {"qwen3-moe", "30B", 0, 128, 8, 0, 768, 1, 1, 0, false, "1"},
    {"qwen3-moe", "235B", 0, 128, 8, 0, 1536, 1, 1, 0, false, "1"},
    {"gpt-oss", "20B", 0, 32, 4, 0, 2880, 1, 1, 0, false, "1"},
    {"gpt-oss", "120B", 0, 128, 4, 0, 2880, 1, 1, 0, false, "1"},
    {"deepseek-v3", "16B", 1, 64, 6, 2, 1408, 1, 1, 0, false, "1"},
    {"deepseek-v3", "236B", 1, 160, 6, 2, 1536, 8, 3, 1536, false, "16"},
    {"deepseek-v3", "671B", 3, 256, 8, 1, 2048, 8, 4, 1536, true, "2.5"},
};
constexpr std::int64_t kKvRank = 512, kNoPositionDim = 128, kRotaryDim = 64, kValueDim = 128;

[[noreturn]] void fail(const std::string& message) { throw OptionError(message); }

std::string show(const char* option, std::int64_t value) {
  return std::string("--") + option + " " + std::to_string(value);
}

void divides(const char* part, std::int64_t pieces, const char* whole, std::int64_t size) {
  if (size % pieces != 0)
    fail(show(whole, size) + " does not divide into " + show(part, pieces) + " equal pieces");
}

void checkDecimal(const char* option, const std::string& text) {
  std::size_t i = 0, digits = 0;
  const auto eat = [&] {
    const std::size_t from = i;
    while (i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]))) ++i;
    digits = i - from;
    return digits > 0;
  };
  bool good = eat() && (digits == 1 || text[0] != '0');  // JSON has no leading zeros
  if (good && i < text.size() && text[i] == '.') {
    ++i;
    good = eat();
  }
  if (good && i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    good = eat() && digits <= 3;
  }
  if (!good || i != text.size())
    fail(std::string("--") + option + " " + text +
         ": expected a number that is not negative, like 0.1 or 1e-4");
}

bool isZero(const std::string& decimal) {
  return decimal.find_first_not_of("0.") == std::string::npos;
}

// Fills in what only mixtures of experts have.
void completeExperts(Options& o, const std::string& size) {
  struct Size {
    const char* option;
    std::int64_t* value;
    std::int64_t otherwise, least;
    bool ofDeepSeek = true;
  };
  const ExpertPreset* preset = nullptr;
  for (const ExpertPreset& p : kExpertPresets)
    if (o.architecture == p.architecture && size == p.size) preset = &p;
  const ExpertPreset none{};
  const ExpertPreset& p = preset == nullptr ? none : *preset;
  const Size sizes[] = {{"dense-layers", &o.denseLayers, p.denseLayers, 0, false},
                        {"experts", &o.experts, p.experts, 1, false},
                        {"active-experts", &o.activeExperts, p.active, 1, false},
                        {"shared-experts", &o.sharedExperts, p.shared, 0, false},
                        {"expert-hidden", &o.expertHidden, p.hidden, 1, false},
                        {"expert-groups", &o.expertGroups, p.groups, 1},
                        {"active-groups", &o.activeGroups, p.activeGroups, 1},
                        {"query-rank", &o.queryRank, p.queryRank, 0},
                        {"kv-rank", &o.kvRank, kKvRank, 1},
                        {"nope-dim", &o.noPositionDim, kNoPositionDim, 1},
                        {"rope-dim", &o.rotaryDim, kRotaryDim, 1},
                        {"value-dim", &o.valueDim, kValueDim, 1}};
  for (const Size& s : sizes) {
    if (*s.value >= 0 && (preset == nullptr || (s.ofDeepSeek && !o.isDeepSeek())))
      fail(o.architecture + " has no --" + std::string(s.option));
    if (*s.value < 0) *s.value = s.otherwise;
    else if (*s.value < s.least)
      fail(show(s.option, *s.value) + " is less than " + std::to_string(s.least));
  }
  checkDecimal("balance-loss", o.balanceLoss);
  if (isZero(o.balanceLoss)) o.balanceLoss = "0";
  if (preset == nullptr) {
    if (o.ep != 1 || o.expertTp != 0) fail(o.architecture + " has no experts for --ep");
    if (o.balanceLoss != "0") fail(o.architecture + " has no experts for --balance-loss");
    if (o.mtp != 0) fail(o.architecture + " has no --mtp");
    o.expertTp = o.tp;
    return;
  }
  if (o.mtp != 0 && !o.isDeepSeek()) fail(o.architecture + " has no --mtp");
  o.sigmoidScores = p.sigmoid;
  o.routingScale = p.scale;
}

// Widths of heads.
void completeHeads(Options& o, bool chosen, const Preset& preset) {
  const bool rotary = preset.sequence != 0 && o.architecture != "gpt" && !o.isDeepSeek();
  if (!rotary && o.headDim != 0) fail(o.architecture + " has no --head-dim");
  const HeadPreset* own = nullptr;
  for (const HeadPreset& p : kHeadPresets)
    if (o.architecture == p.architecture) own = &p;
  if (rotary && o.headDim == 0) {
    if (own != nullptr && !chosen) {
      o.headDim = own->width;
      return;
    }
    if (o.dim % o.heads != 0)
      fail(show("dim", o.dim) + " is not a multiple of " + show("heads", o.heads) +
           ", and there is no --head-dim");
    o.headDim = o.dim / o.heads;
  }
}

// Experts, their groups, and the ranks that hold them.
void checkExperts(Options& o) {
  if (o.denseLayers > o.layers)
    fail(show("dense-layers", o.denseLayers) + " is more than " + show("layers", o.layers));
  if (o.isDeepSeek() && o.rotaryDim % 2 != 0) fail(show("rope-dim", o.rotaryDim) + " is not even");
  divides("expert-groups", o.expertGroups, "experts", o.experts);
  if (o.activeGroups > o.expertGroups)
    fail(show("active-groups", o.activeGroups) + " is more than " +
         show("expert-groups", o.expertGroups));
  const std::int64_t inGroup = o.experts / o.expertGroups;
  if (o.sigmoidScores && o.expertGroups > 1 && inGroup < 2)
    fail("a group's score is that of its two best experts, and " + show("experts", o.experts) +
         " in " + show("expert-groups", o.expertGroups) + " are one in each");
  if (o.activeExperts > o.activeGroups * inGroup)
    fail(show("active-experts", o.activeExperts) + " is more than the " +
         std::to_string(o.activeGroups * inGroup) + " experts of " +
         show("active-groups", o.activeGroups));
  // Each expert of gpt-oss has a bias of its result, which counts once, so one rank has it whole.
  if (o.clampedExperts() && (o.ep % o.tp != 0 || o.expertTp > 1))
    fail(o.architecture + " holds each expert on one rank: --ep must be a multiple of " +
         show("tp", o.tp) + ", and --expert-tp 1");
  if (o.expertTp == 0) o.expertTp = o.clampedExperts() || (o.ep > 1 && o.ep % o.tp == 0) ? 1 : o.tp;
  if (o.expertTp != 1 && o.expertTp != o.tp)
    fail(show("expert-tp", o.expertTp) + " is neither 1 nor " + show("tp", o.tp));
  if (o.expertTp == 1 && o.ep % o.tp != 0)
    fail(show("expert-tp", 1) + ": " + show("ep", o.ep) + " is not a multiple of " +
         show("tp", o.tp));
  divides("ep", o.ep, "experts", o.experts);
  divides("expert-tp", o.expertTp, "expert-hidden", o.expertHidden);
  if (o.dp % o.epRanks() != 0)
    fail(show("ep", o.ep) + " needs " + std::to_string(o.epRanks()) +
         " data-parallel ranks, which do not divide " + show("dp", o.dp));
  if (o.sharedExperts > 0) divides("tp", o.tp, "expert-hidden", o.expertHidden * o.sharedExperts);
  if (o.mtp > 1) fail("--mtp " + std::to_string(o.mtp) + ": one module is supported");
}

// Attention heads, key-value heads, positions.
void checkHeads(const Options& o) {
  divides("tp", o.tp, "heads", o.heads);
  if (o.isDeepSeek()) return;  // heads have a width of their own
  if (o.architecture == "gpt" && o.dim % o.heads != 0)
    fail(show("dim", o.dim) + " is not a multiple of " + show("heads", o.heads));
  if (o.headDim % 2 != 0)
    fail("rotary embedding needs an even number of dimensions for each head, found " +
         std::to_string(o.headDim));
  if (o.heads % o.kvHeads != 0)
    fail(show("heads", o.heads) + " is not a multiple of " + show("kv-heads", o.kvHeads));
  if (o.kvHeads % o.tp != 0 && o.tp % o.kvHeads != 0)
    fail(show("kv-heads", o.kvHeads) + " is neither a multiple nor a divisor of " +
         show("tp", o.tp));
}

// Context parallelism.
void checkContext(const Options& o) {
  if (o.cp == 1)
    fail(std::string(o.cpBalanced ? "--cp-balanced" : "--cp-ring") + " needs --cp of at least 2");
  if (o.architecture == "mlp") fail("mlp has no sequence for --cp");
  if (o.architecture == "gpt")
    fail("gpt has no --cp: its positions are a parameter, which ranks would have to cut");
  if (o.cpRing && o.sinks())
    fail(o.architecture + " has no --cp-ring: its sinks take a share of all keys at once");
  const std::int64_t chunks = o.cpBalanced ? 2 * o.cp : o.cp;
  if (o.sequence % chunks != 0)
    fail(show("seq", o.sequence) + " does not divide into the " + std::to_string(chunks) +
         " equal chunks of " + show("cp", o.cp) + (o.cpBalanced ? " --cp-balanced" : ""));
  if (o.sequenceParallel) divides("tp", o.tp, "seq", o.sequence / o.cp);
  if (o.sequenceParallel && o.cpBalanced && o.tp % 2 != 0)
    fail("--cp-balanced with --sequence-parallel needs an even --tp, found " +
         std::to_string(o.tp) + ": a rank's part would have tokens of both its chunks");
  if (o.experts == 0) return;
  // Tokens of several sequences in one dimension are no box of it.
  if (o.batch != o.splits())
    fail("--cp with experts needs one sequence in each microbatch, found " +
         std::to_string(o.batch / o.splits()));
  if (o.epRanks() > 1)
    fail("--cp with " + show("ep", o.ep) +
         ": the tokens that ranks of dp exchange would be parts of "
         "their sequences; --ep over tp only is supported");
  if (o.balanceLoss != "0")
    fail("--balance-loss is a mean over whole sequences, which ranks of --cp do not have");
}

// Sizes that make files which nobody could read: they must fit somewhere, and each tensor's
// elements into 64 bits.
void checkSizes(const Options& o) {
  constexpr std::int64_t kMostBlocks = 1 << 20;  // some gigabytes
  if (o.layers > kMostBlocks / o.microbatches)
    fail(show("layers", o.layers) + " times " + show("microbatches", o.microbatches) +
         " is more than " + std::to_string(kMostBlocks));
  const auto fits = [](std::initializer_list<std::int64_t> factors) {
    std::int64_t product = 1;
    for (const std::int64_t f : factors)
      if (__builtin_mul_overflow(product, f, &product)) return false;
    return product <= std::int64_t{1} << 62;
  };
  const std::int64_t perHead =
                         std::max<std::int64_t>(o.noPositionDim + o.rotaryDim + o.valueDim, 1),
                     latents = std::max<std::int64_t>(o.kvRank, o.queryRank);
  if (o.experts > 0 &&
      (!fits({o.experts, o.expertHidden, std::max<std::int64_t>(o.sharedExperts, 1), o.dim, 4}) ||
       !fits({o.batch, std::max<std::int64_t>(o.sequence, 1), o.activeExperts, o.experts, 4}) ||
       !fits({o.heads, perHead, std::max(o.dim, latents), 4}) ||
       !fits({o.batch, std::max<std::int64_t>(o.sequence, 1), o.heads, perHead, 4})))
    fail("with these sizes a tensor has more than 2^62 elements");
  const std::int64_t widest = std::max({o.dim, o.hidden, o.vocabulary, o.heads * o.headDim}),
                     sequence = std::max<std::int64_t>(o.sequence, 1),
                     heads = std::max<std::int64_t>(o.heads, 1);
  if (!fits({o.batch, sequence, widest, 4}) || !fits({o.batch, heads, sequence, sequence}) ||
      !fits({widest, std::max(o.dim, o.hidden), 4}))
    fail("with these sizes a tensor has more than 2^62 elements");
}

}  // namespace

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const Preset& p : kPresets)
    if (names.empty() || names.back() != p.architecture) names.emplace_back(p.architecture);
  return names;
}

std::vector<std::string> presetsOf(const std::string& architecture) {
  std::vector<std::string> sizes;
  for (const Preset& p : kPresets)
    if (architecture == p.architecture) sizes.emplace_back(p.size);
  return sizes;
}

Options complete(Options o) {
  const Preset* preset = nullptr;
  for (const Preset& p : kPresets)
    if (o.architecture == p.architecture &&
        (o.size == p.size || (o.size.empty() && preset == nullptr)))
      preset = &p;
  if (presetsOf(o.architecture).empty()) {
    std::string known;
    for (const std::string& name : architectures()) known += (known.empty() ? "" : ", ") + name;
    fail("unknown architecture '" + o.architecture + "', expected one of " + known);
  }
  if (preset == nullptr) {
    std::string known;
    for (const std::string& size : presetsOf(o.architecture))
      known += (known.empty() ? "" : ", ") + size;
    fail("unknown --size " + o.size + ", " + o.architecture + " has " + known);
  }
  const bool transformer = o.architecture != "mlp";
  const auto choose = [&](const char* option, std::int64_t& value, std::int64_t otherwise) {
    if (value == 0) value = otherwise;
    else if (otherwise == 0) fail(std::string(o.architecture) + " has no --" + option);
  };
  const bool ownWidths = o.dim != 0 || o.heads != 0;
  choose("layers", o.layers, preset->layers);
  choose("dim", o.dim, preset->dim);
  choose("hidden", o.hidden, preset->hidden != 0 ? preset->hidden : 4 * o.dim);
  choose("heads", o.heads, preset->heads);
  if (o.kvHeads == 0 && transformer && preset->kvHeads > o.heads) o.kvHeads = o.heads;
  choose("kv-heads", o.kvHeads, preset->kvHeads);
  if (o.kvHeads == 0) o.kvHeads = o.heads;
  choose("seq", o.sequence, preset->sequence);
  choose("vocab", o.vocabulary, preset->vocabulary);
  completeHeads(o, ownWidths, *preset);
  completeExperts(o, preset->size);
  if (o.optimizer.empty()) o.optimizer = transformer ? "adamw" : "sgd";
  if (o.clip.empty()) o.clip = transformer ? "1.0" : "0";
  const std::string usual = o.architecture == "gpt" ? "0.1" : "0";
  if (o.dropout.empty()) o.dropout = usual;
  checkDecimal("dropout", o.dropout);
  if (isZero(o.dropout)) o.dropout = "0";
  else if (o.architecture != "gpt") fail(o.architecture + " has no --dropout");
  else if (std::stod(o.dropout) >= 1) fail("--dropout " + o.dropout + " is not less than 1");
  checkDecimal("clip", o.clip);
  checkDecimal("lr", o.learningRate);
  checkDecimal("weight-decay", o.weightDecay);
  if (isZero(o.clip)) o.clip = "0";

  constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;
  for (const std::int64_t degree : {o.dp, o.tp, o.pp, o.microbatches})
    if (degree < 1 || degree > kMostRanks)
      fail("--dp, --tp, --pp and --microbatches must be between 1 and " +
           std::to_string(kMostRanks));
  if (o.ep < 1 || o.ep > kMostRanks || o.expertTp < 0)
    fail("--ep must be between 1 and " + std::to_string(kMostRanks));
  if (o.cp < 1 || o.cp > kMostRanks)
    fail("--cp must be between 1 and " + std::to_string(kMostRanks));
  if (o.dp * o.tp > kMostRanks || o.dp * o.tp * o.pp > kMostRanks ||
      o.dp * o.tp * o.pp * o.cp > kMostRanks)
    fail("more than " + std::to_string(kMostRanks) + " ranks");

  if (o.batch == 0) o.batch = o.splits();
  if (o.batch % o.splits() != 0)
    fail(show("batch", o.batch) + " does not divide into " + show("dp", o.dp) + " times " +
         show("microbatches", o.microbatches) + " equal pieces");

  if (o.schedule == "interleaved") {
    if (o.pp == 1) fail("--schedule interleaved needs --pp of at least 2");
    if (o.virtualStages < 2) fail("--schedule interleaved needs --virtual-stages of at least 2");
    if (o.microbatches % o.pp != 0)
      fail("--schedule interleaved: " + show("microbatches", o.microbatches) +
           " must be a multiple of " + show("pp", o.pp));
  } else if (o.virtualStages != 1) {
    fail(show("virtual-stages", o.virtualStages) + " needs --schedule interleaved");
  }
  if (o.schedule == "1f1b" && o.pp == 1) fail("--schedule 1f1b needs --pp of at least 2");
  if (o.layers < o.chunks())
    fail(show("layers", o.layers) + " is less than the number of pipeline stages, " +
         std::to_string(o.chunks()));

  divides("tp", o.tp, "hidden", o.hidden);
  if (transformer) checkHeads(o);
  if (o.experts > 0) checkExperts(o);
  if (o.vocabularyParallel) {
    if (!transformer) fail(o.architecture + " has no vocabulary for --vocab-parallel");
    if (o.tp == 1) fail("--vocab-parallel needs --tp of at least 2");
  }
  if (!transformer && o.padVocabulary != 1)
    fail(o.architecture + " has no vocabulary for --pad-vocab-multiple");
  // Megatron-LM's rule: the padding is rows of the table like others, in the softmax too, so the
  // model has them as well.
  const std::int64_t multiple = o.padVocabulary * (o.vocabularyParallel ? o.tp : 1);
  o.vocabulary = (o.vocabulary + multiple - 1) / multiple * multiple;
  if (o.sequenceParallel) {
    if (!transformer) fail(o.architecture + " has no sequence for --sequence-parallel");
    if (o.tp == 1) fail("--sequence-parallel needs --tp of at least 2");
    divides("tp", o.tp, "seq", o.sequence);
  }
  if (o.cp > 1 || o.cpBalanced || o.cpRing) checkContext(o);
  checkSizes(o);
  if (o.zero > 0 && o.dp * o.cp == 1)
    fail("--zero " + std::to_string(o.zero) + " needs --dp of at least 2");
  return o;
}

}  // namespace shardproof::generate
