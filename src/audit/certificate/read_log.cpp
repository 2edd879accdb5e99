// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "certificate/proof_log.h"
#include "reader/file_header.h"
#include "reader/json_stream.h"
#include "util/base64.h"

namespace shardproof {

namespace {

using reader::Place;
using reader::StreamClient;
using reader::Value;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

// The value among `values` whose name the text is.
template <class E>
E named(const Value& value, std::initializer_list<E> values, const char* expected) {
  for (const E e : values) {
    if (value.string() == toString(e)) return e;
  }
  value.expected(expected);
}

std::vector<EntryId> readIds(const Value& value) {
  std::vector<EntryId> ids;
  for (const Value id : value.expectArray()) {
    ids.emplace_back(id.integer(0, kMost));
    if (ids.size() > 1 && ids[ids.size() - 2] >= ids.back()) id.expected("ascending numbers");
  }
  return ids;
}

class LogClient : public StreamClient {
 public:
  explicit LogClient(ProofLog& log) : log_(log), header_("shardproof-proof-log") {}

  int open(int state, std::string_view key, bool object, const Place&) override {
    if (state == kOutside) return object ? kLog : kWhole;
    if (state != kLog || object) return kWhole;
    if (key == "classes") return classesSeen_ = true, kClasses;
    if (key == "lineage") return lineageSeen_ = true, kLineage;
    if (key == "outputs") return outputsSeen_ = true, kOutputs;
    if (key == "forbidden") return forbiddenSeen_ = true, kForbidden;
    return kWhole;
  }

  void value(int state, std::string_view key, const Value& v) override {
    switch (state) {
      case kLog:
        field(key, v);
        break;
      case kClasses:
        readClass(v);
        break;
      case kLineage:
        readEntry(v);
        break;
      case kOutputs:
        readOutput(v);
        break;
      case kForbidden:
        log_.forbidden.push_back(readIds(v));
        break;
      default:
        v.expected("an object (a proof log)");
    }
  }

  void close(int state, const Place& place) override {
    if (state != kLog) return;
    header_.checkComplete(place);
    const auto need = [&](bool seen, const char* name) {
      if (!seen) place.fail(std::string("the field \"") + name + "\" is missing");
    };
    need(!log_.program.empty(), "program");
    need(!log_.version.empty(), "rules");
    need(checkerSeen_, "checker");
    need(!log_.model.sha256.empty(), "model");
    need(!log_.plan.sha256.empty(), "plan");
    need(verdictSeen_, "verdict");
    need(classesSeen_, "classes");
    need(forbiddenSeen_, "forbidden");
    need(lineageSeen_, "lineage");
    need(positioningSeen_, "positioning");
    need(outputsSeen_, "outputs");
    checkIds(place);
  }

 private:
  enum State { kLog = 1, kClasses, kLineage, kOutputs, kForbidden };

  void field(std::string_view key, const Value& v) {
    if (header_.read(key, v)) return;
    if (key == "program") {
      log_.program = v.name();
    } else if (key == "rules") {
      log_.version = v.name();
    } else if (key == "checker") {
      if (v.string() != "auto" && v.string() != "z3") v.expected("\"auto\" or \"z3\"");
      log_.checker = v.string() == "z3" ? Checker::kZ3 : Checker::kAuto;
      checkerSeen_ = true;
    } else if (key == "model") {
      log_.model = readFile(v);
    } else if (key == "plan") {
      log_.plan = readFile(v);
    } else if (key == "verdict") {
      if (v.string() != "equivalent") v.expected("\"equivalent\": nothing else is certified");
      verdictSeen_ = true;
    } else if (key == "positioning") {
      for (const Value id : v.expectArray())
        log_.positioning.push_back(EntryId(id.integer(0, kMost)));
      positioningSeen_ = true;
    } else if (key == "classes" || key == "forbidden" || key == "lineage" || key == "outputs") {
      v.expectArray();
    } else {
      v.fail("unknown field \"" + std::string(key) + "\"");
    }
  }

  static ProofLog::File readFile(const Value& v) {
    static const std::vector<std::string_view> kFields{"file", "sha256"};
    v.expectFields(kFields);
    return {std::string(v.require("file").name()), std::string(v.require("sha256").name())};
  }

  void readClass(const Value& v) {
    static const std::vector<std::string_view> kFields{"class", "method", "sha256", "form"};
    v.expectFields(kFields);
    if (v.require("class").integer() != static_cast<std::int64_t>(log_.classes.size()))
      v.require("class").expected(std::to_string(log_.classes.size()));
    ProofLog::Class made;
    made.method =
        named(v.require("method"), {Method::kNormalForm, Method::kPolynomial, Method::kSolver},
              "a method of proof");
    made.sha256 = v.require("sha256").name();
    auto form = fromBase64(v.require("form").string());
    if (!form) v.require("form").expected("base64 text");
    made.form = std::move(*form);
    log_.classes.push_back(std::move(made));
  }

  void readEntry(const Value& v) {
    static const std::vector<std::string_view> kFields{
        "entry", "tensor", "role", "proved", "class", "assumes", "forbidden", "key", "lumped"};
    static const std::vector<std::string_view> kGiven{"entry", "tensor", "role"},
        kUnproved{"entry", "tensor", "role", "proved"};
    v.expectFields(kFields);
    const std::string place = "/lineage/" + std::to_string(log_.lineage.size());
    if (v.require("entry").string() != place) v.require("entry").expected("\"" + place + "\"");
    ProofLog::Entry made;
    made.tensor = v.require("tensor").name();
    made.role =
        named(v.require("role"), {Role::kInput, Role::kOutput, Role::kCutPoint, Role::kAssumed},
              "\"input\", \"output\", \"cut_point\" or \"assumed\"");
    if (isGiven(made.role)) {
      v.expectFields(kGiven);
    } else if (made.proof.proved = v.require("proved").boolean(); !made.proof.proved) {
      v.expectFields(kUnproved);
    } else {
      made.proof.classId = static_cast<std::int32_t>(v.require("class").integer(0, kMost));
      made.proof.assumes = readIds(v.require("assumes"));
      made.proof.forbidden = static_cast<std::int32_t>(v.require("forbidden").integer(0, kMost));
      made.proof.key = v.require("key").integer();
      made.proof.collapse = v.require("lumped").boolean();
    }
    log_.lineage.push_back(std::move(made));
  }

  void readOutput(const Value& v) {
    static const std::vector<std::string_view> kFields{"tensor", "entries"};
    v.expectFields(kFields);
    log_.outputs.push_back(
        {std::string(v.require("tensor").name()), readIds(v.require("entries"))});
  }

  // The lists may come in any order, so this can be said only at the end.
  void checkIds(const Place& place) const {
    const auto most = static_cast<std::int32_t>(log_.lineage.size());
    const auto within = [&](const std::vector<EntryId>& ids) {
      return std::all_of(ids.begin(), ids.end(), [&](EntryId id) { return id < most; });
    };
    for (const EntryId e : firstIds<EntryId>(log_.lineage.size())) {
      const ProofRecord::Entry& proof = log_.lineage[e].proof;
      if (!within(proof.assumes))
        place.fail("/lineage/" + std::to_string(e) +
                   " assumes an entry that the log does not have");
      if (proof.proved && static_cast<std::size_t>(proof.classId) >= log_.classes.size())
        place.fail("/lineage/" + std::to_string(e) + " is of a class that the log does not have");
      if (proof.proved && static_cast<std::size_t>(proof.forbidden) >= log_.forbidden.size())
        place.fail("/lineage/" + std::to_string(e) +
                   " was cut without a set of entries that the log does not have");
    }
    bool known = within(log_.positioning);
    for (const auto& set : log_.forbidden) known = known && within(set);
    for (const auto& output : log_.outputs) known = known && within(output.entries);
    if (!known)
      place.fail(
          "\"positioning\", \"outputs\" or \"forbidden\" names an entry that the log does not "
          "have");
  }

  ProofLog& log_;
  reader::FileHeader header_;
  bool forbiddenSeen_ = false, checkerSeen_ = false, verdictSeen_ = false, classesSeen_ = false,
       lineageSeen_ = false, positioningSeen_ = false, outputsSeen_ = false;
};

}  // namespace

ProofLog readProofLog(const std::string& file) {
  ProofLog log;
  log.file = file;
  LogClient client(log);
  reader::readJson(file, client);
  return log;
}

}  // namespace shardproof
