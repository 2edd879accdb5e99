// SPDX-License-Identifier: Apache-2.0
#include "fuzz_support.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <nlohmann/json.hpp>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace shardproof::fuzz {

namespace {

using Json = nlohmann::ordered_json;
using Random = std::mt19937;

constexpr std::string_view kSeparator = "\n%%\n";

class Directory {
 public:
  Directory() {
    // In memory where there is such a place: thousands of files a second are written.
    std::string pattern =
        (std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                             : std::filesystem::temp_directory_path().string()) +
        "/shardproof-fuzz-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

const std::string& demoModel() {
  static const std::string text = [] {
    std::ostringstream out;
    out << std::ifstream(SHARDPROOF_FUZZ_MODEL).rdbuf();
    if (out.str().empty()) throw std::runtime_error("cannot read " SHARDPROOF_FUZZ_MODEL);
    return out.str();
  }();
  return text;
}

// ---- mutations of JSON ----

struct EntryShard {
  Json* value;
  Json* parent;
};

void collect(Json& value, Json* parent, std::vector<EntryShard>& out) {
  out.push_back({&value, parent});
  if (value.is_structured()) {
    for (Json& member : value) collect(member, &value, out);
  }
}

std::size_t below(Random& random, std::size_t n) { return random() % n; }

Json awkwardNumber(Random& random) {
  constexpr std::int64_t kNumbers[] = {0,
                                       1,
                                       2,
                                       3,
                                       4,
                                       5,
                                       7,
                                       8,
                                       16,
                                       -1,
                                       -2,
                                       63,
                                       64,
                                       65,
                                       127,
                                       255,
                                       1000,
                                       65536,
                                       65537,
                                       400'001,
                                       1 << 20,
                                       (1 << 20) + 1,
                                       std::int64_t{1} << 31,
                                       (std::int64_t{1} << 31) - 1,
                                       -(std::int64_t{1} << 31),
                                       std::int64_t{1} << 32,
                                       std::int64_t{1} << 40,
                                       std::int64_t{1} << 62,
                                       std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min()};
  constexpr double kDecimals[] = {0.5, -0.5, 1e-5, 1e300, 1e-300, 0.1, 2.5, 1.0, -0.0};
  const std::size_t choice = below(random, std::size(kNumbers) + std::size(kDecimals) + 1);
  if (choice < std::size(kNumbers)) return kNumbers[choice];
  if (choice < std::size(kNumbers) + std::size(kDecimals))
    return kDecimals[choice - std::size(kNumbers)];
  return std::numeric_limits<std::uint64_t>::max();
}

Json anything(Random& random) {
  switch (below(random, 8)) {
    case 0:
      return nullptr;
    case 1:
      return true;
    case 2:
      return Json::array();
    case 3:
      return Json::object();
    case 4:
      return "";
    case 5:
      return "*";
    default:
      return awkwardNumber(random);
  }
}

// Words of the format that a small document may not have.
std::string word(Random& random) {
  static const std::vector<std::string> words{"input",      "output",       "cut_point",
                                              "parameter",  "constant",     "int64",
                                              "bool",       "complex64",    "mb",
                                              "group",      "group_at",     "root",
                                              "to",         "from",         "tag",
                                              "order",      "issue",        "per_mb",
                                              "value",      "grad_of",      "sum",
                                              "step",       "attrs",        "reduce",
                                              "mean",       "max",          "min",
                                              "dim",        "idim",         "odim",
                                              "all_reduce", "all_gather",   "reduce_scatter",
                                              "all_to_all", "broadcast",    "send",
                                              "recv",       "add",          "sub",
                                              "mul",        "div",          "pow",
                                              "sqrt",       "exp",          "log",
                                              "neg",        "relu",         "silu",
                                              "gelu",       "softmax",      "view",
                                              "reshape",    "transpose",    "permute",
                                              "expand",     "cat",          "slice",
                                              "chunk",      "pad",          "select",
                                              "identity",   "mean",         "amax",
                                              "linear",     "matmul",       "embedding",
                                              "layer_norm", "rms_norm",     "dropout",
                                              "multiref",   "cross_entropy"};
  return words[below(random, words.size())];
}

// Everywhere at once: a size that all shapes have, an operator on both sides.
void replaceAll(const std::vector<EntryShard>& places, const Json& what, const Json& with) {
  for (const EntryShard& p : places) {
    if (*p.value == what) *p.value = with;
  }
}

void edit(Json& document, Random& random) {
  std::vector<EntryShard> places;
  collect(document, nullptr, places);
  const auto any = [&] { return places[below(random, places.size())]; };
  const auto anyWhere = [&](auto wanted) -> Json* {
    for (int i = 0; i < 40; ++i) {
      if (const EntryShard p = any(); wanted(*p.value)) return p.value;
    }
    return nullptr;
  };
  const auto string = [](const Json& v) { return v.is_string(); };
  switch (below(random, 16)) {
    case 12:
    case 13:
      if (Json* v =
              anyWhere([](const Json& x) { return x.is_number_integer() && x > 0 && x < 1000; })) {
        constexpr std::int64_t kSizes[] = {1, 2, 3, 4, 5, 6, 8, 12};
        replaceAll(places, Json(*v), kSizes[below(random, std::size(kSizes))]);
      }
      break;
    case 14:
      if (Json* v = anyWhere(string)) replaceAll(places, Json(*v), word(random));
      break;
    case 0:
      if (Json* v = anyWhere([](const Json& x) { return x.is_number(); }))
        *v = awkwardNumber(random);
      break;
    case 1:
      if (Json* v = anyWhere([](const Json& x) {
            return x.is_number_integer() && x < (1LL << 40) && x > -(1LL << 40);
          })) {
        *v = v->get<std::int64_t>() + (below(random, 2) == 0 ? 1 : -1);
      }
      break;
    case 2:  // another value of the same type
    case 3: {
      Json* v = any().value;
      Json* other = anyWhere([&](const Json& x) { return x.type() == v->type(); });
      if (other != nullptr && other != v) {
        const Json copy = *other;
        *v = copy;
      }
      break;
    }
    case 4:  // any other
      if (Json* v = any().value) {
        const Json copy = *any().value;
        if (copy.size() < 50) *v = copy;
      }
      break;
    case 5: {
      const EntryShard p = any();
      if (p.parent == nullptr || p.parent->empty()) break;
      auto it = p.parent->begin();
      std::advance(it, static_cast<std::ptrdiff_t>(below(random, p.parent->size())));
      p.parent->erase(it);
      break;
    }
    case 6:
      if (Json* v = anyWhere([](const Json& x) { return x.is_array() && !x.empty(); })) {
        const Json copy = (*v)[below(random, v->size())];
        v->insert(v->begin() + static_cast<std::ptrdiff_t>(below(random, v->size() + 1)), copy);
      }
      break;
    case 7:
      if (Json* v = anyWhere([](const Json& x) { return x.is_array() && x.size() > 1; }))
        std::swap((*v)[below(random, v->size())], (*v)[below(random, v->size())]);
      break;
    case 8:
      if (Json* v = anyWhere(string)) {
        Json* other = anyWhere(string);
        std::string text =
            other != nullptr && below(random, 4) != 0 ? other->get<std::string>() : word(random);
        if (below(random, 6) == 0) text += "#" + std::to_string(below(random, 3));
        *v = text;
      }
      break;
    case 9:
      *any().value = anything(random);
      break;
    case 10:
      if (Json* v = anyWhere([](const Json& x) { return x.is_object() && !x.empty(); })) {
        auto it = v->begin();
        std::advance(it, static_cast<std::ptrdiff_t>(below(random, v->size())));
        const Json moved = *it;
        v->erase(it);
        (*v)[below(random, 2) == 0 ? word(random)
             : it == v->end()      ? std::string("a")
                                   : it.key()] = moved;
      }
      break;
    default:
      if (Json* v = anyWhere([](const Json& x) { return x.is_object(); }))
        (*v)[word(random)] = below(random, 2) == 0 ? Json(word(random)) : anything(random);
      break;
  }
}

std::size_t store(const std::string& text, std::uint8_t* data, std::size_t most) {
  if (text.empty() || text.size() > most) return 0;
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace

std::string writeInput(const std::string& name, std::string_view data) {
  static const Directory directory;
  const std::string file = directory.file(name + (data.starts_with("\x1f\x8b") ? ".gz" : ""));
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(data.data(), static_cast<std::streamsize>(data.size()));
  return file;
}

ModelAndPlan splitInput(std::string_view data) {
  const std::size_t at = data.find(kSeparator);
  if (at == std::string_view::npos) return {demoModel(), std::string(data)};
  return {std::string(data.substr(0, at)), std::string(data.substr(at + kSeparator.size()))};
}

std::string joinInput(const ModelAndPlan& files) {
  return files.model == demoModel() ? files.plan
                                    : files.model + std::string(kSeparator) + files.plan;
}

namespace {

void editSome(Json& document, std::uint32_t seed) {
  Random random(seed);
  for (std::size_t i = 0, n = 1 + below(random, 3); i < n; ++i) edit(document, random);
}

std::string textOf(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string mutateJson(std::string_view text, std::uint32_t seed) {
  Json document = Json::parse(text, nullptr, false);
  if (document.is_discarded()) return {};
  editSome(document, seed);
  return textOf(document);
}

std::size_t mutateDocument(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  if (seed % 4 != 0) {
    const std::string changed = mutateJson({reinterpret_cast<const char*>(data), size}, seed / 4);
    if (const std::size_t n = store(changed, data, most)) return n;
  }
  return LLVMFuzzerMutate(data, size, most);
}

std::size_t mutateModelAndPlan(std::uint8_t* data, std::size_t size, std::size_t most,
                               unsigned seed, bool (*wanted)(const ModelAndPlan&)) {
  if (seed % 4 == 0) return LLVMFuzzerMutate(data, size, most);
  ModelAndPlan files = splitInput({reinterpret_cast<const char*>(data), size});
  const Json model = Json::parse(files.model, nullptr, false),
             plan = Json::parse(files.plan, nullptr, false);
  if (model.is_discarded() || plan.is_discarded()) return LLVMFuzzerMutate(data, size, most);
  constexpr unsigned kTries = 12;
  for (unsigned i = 0; i < (wanted == nullptr ? 1 : kTries); ++i) {
    Json both = Json::array({model, plan});  // as one document: some edits are made on both sides
    editSome(both, seed / 4 + i * 7919);
    if (!both.is_array() || both.size() != 2) continue;
    files = {textOf(both[0]), textOf(both[1])};
    if (wanted == nullptr || wanted(files)) break;
  }
  const std::size_t n = store(joinInput(files), data, most);
  return n > 0 ? n : LLVMFuzzerMutate(data, size, most);
}

void require(bool holds, const char* property, const std::string& detail) {
  if (holds) return;
  std::fprintf(stderr, "PROPERTY VIOLATED: %s\n%s\n", property, detail.c_str());
  std::abort();
}

}  // namespace shardproof::fuzz
