// SPDX-License-Identifier: Apache-2.0
// The proof cache's file: an SQLite database with one table. Every function but the constructors
// may be called by several processes on one file at once; all throw CacheError when the file does
// not let them do their work.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache/proof_store.h"
#include "cache/sqlite.h"

namespace shardproof {

// kNoCache: the file is missing, is no database, or one of something else, or is damaged.
// kUnusable: locked, not readable, not writable, full.
class CacheError : public std::runtime_error {
 public:
  enum class Kind : std::uint8_t { kNoCache, kUnusable };
  CacheError(Kind kind_, const std::string& what) : std::runtime_error(what), kind(kind_) {}
  Kind kind;
};

// What proofs depend on besides the stage and the checker asked for: a row of another version is
// never used.
std::string proofVersion();

struct CacheRow {
  std::int64_t id = 0;
  std::string version;
  Checker checker = Checker::kAuto;
  StoredProof proof;
  std::string form;
  bool sound = false;  // its content is what was written; if not, only `id` is to be relied on
};

struct CacheStatistics {
  struct Version {
    std::size_t rows = 0;
    std::int64_t bytes = 0, hits = 0;
  };
  std::int64_t fileBytes = 0;
  std::map<std::string, Version> versions;
};

struct PruneOptions {
  std::optional<std::int64_t> maxBytes;  // of the file
  std::optional<double> olderThanDays;   // not used for so long
};

struct PruneResult {
  std::size_t otherVersions = 0, damaged = 0, old = 0, forSize = 0, left = 0;
  std::int64_t bytesBefore = 0, bytesAfter = 0;
};

class CacheFile {
 public:
  // kCreate makes the file, or the table in an empty one. Others want it to be there. Waits so long
  // for other processes.
  CacheFile(std::string path, sqlite::Access access, int busyMilliseconds = 10'000);

  struct Found {
    std::int64_t id = -1;  // -1: none
    StoredProof proof;
    bool damaged = false;  // a row that might have been it is none any more
  };
  Found find(const std::string& form, Checker checker);

  struct New {
    std::string form;
    Checker checker = Checker::kAuto;
    StoredProof proof;
  };
  // One transaction: new proofs (those that another process has added meanwhile are left as they
  // are), and rows that were used.
  void write(const std::vector<New>& proofs, const std::vector<std::int64_t>& used);

  CacheStatistics statistics();
  std::vector<std::int64_t> ids(const std::string& version);
  std::optional<CacheRow> row(std::int64_t id);  // none: another process has removed it
  // Removes rows of other versions and damaged ones, and what the options say.
  PruneResult prune(const PruneOptions& options);

 private:
  template <class F>
  auto guarded(F&& f);
  void openTable(sqlite::Access access);
  bool isEmpty();
  static CacheRow decode(const sqlite::Statement& s, bool whole);
  std::int64_t fileBytes() const;

  std::string path_;
  std::optional<sqlite::Database> database_;
};

// The store that `verify --cache` uses. Whatever goes wrong with the file is noted, and the file is
// not asked again for what it cannot do.
class CacheFileStore : public ProofStore {
 public:
  explicit CacheFileStore(const std::string& path);
  std::optional<StoredProof> find(const std::string& form, Checker checker) override;
  void add(const std::string& form, Checker checker, const StoredProof& proof) override;
  void flush() override;
  // One line for each thing that went wrong, in order.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::string path_;
  std::optional<CacheFile> file_;  // none: not to be used any more
  bool writable_ = true;
  bool damagedRows_ = false;
  std::chrono::steady_clock::time_point flushed_ = std::chrono::steady_clock::now();
  std::vector<CacheFile::New> new_;
  std::vector<std::int64_t> used_;
  std::vector<std::string> problems_;
};

}  // namespace shardproof
