// SPDX-License-Identifier: Apache-2.0
// A row is found by a check sum of the stage's canonical form, and then the form itself is
// compared: a check sum alone would let one stage's proof stand for another's. The row's own check
// sum is there against bytes that a disk or a copy has changed, not against forgery: whoever can
// write the file can write proofs into it (`shardproof cache verify` would tell).
//
// Rollback journal, not WAL: nothing stays beside the file when the last process ends, it works on
// network file systems and in directories that may only be read, and writers are rare - one short
// transaction when a round's proofs are done. Others wait for it (busy time-out).
#include "cache/cache_file.h"

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "cache/trusted_digest.h"
#include "ops/registry.h"
#include "smt/solver.h"

namespace shardproof {

namespace {

constexpr std::int64_t kApplicationId =
    0x73687066;  // "shpf": in the file's header, tells our files from other databases
constexpr std::int64_t kSchema = 1;  // of the table; to be raised when its columns change
constexpr const char* kColumns =
    "id, version, checker, method, form, form_length, shapes, check_sum";
constexpr std::int64_t kMostFormBytes = std::int64_t{1} << 30;
constexpr std::chrono::seconds kLongestUnwritten{5};
constexpr std::int64_t kRowOverhead = 128;  // bytes of a row besides its blobs, roughly

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::int64_t checkSum(std::string_view bytes, std::int64_t before = 0) {
  return static_cast<std::int64_t>(crc32_z(
      static_cast<uLong>(before), reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::int64_t rowSum(const std::string& version, std::int64_t checker, std::int64_t method,
                    std::string_view shapes, std::string_view form) {
  const std::string head = version + "\n" + std::to_string(checker) + "\n" +
                           std::to_string(method) + "\n" + std::to_string(shapes.size()) + "\n";
  return checkSum(form, checkSum(shapes, checkSum(head)));
}

std::string compressed(const std::string& text) {
  uLongf size = compressBound(text.size());
  std::string out(size, '\0');
  if (compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                reinterpret_cast<const Bytef*>(text.data()), text.size(), 1) != Z_OK)
    throw std::bad_alloc();
  out.resize(size);
  return out;
}

std::optional<std::string> expanded(std::string_view bytes, std::int64_t length) {
  // Deflate makes at most some 1032 bytes of one: a length beyond that is not true, and not to be
  // allocated.
  if (length < 0 || length > kMostFormBytes ||
      length / 1100 > static_cast<std::int64_t>(bytes.size()))
    return std::nullopt;
  std::string out(static_cast<std::size_t>(length), '\0');
  auto size = static_cast<uLongf>(length);
  if (uncompress(reinterpret_cast<Bytef*>(out.data()), &size,
                 reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) != Z_OK)
    return std::nullopt;
  return size == out.size() ? std::optional(std::move(out)) : std::nullopt;
}

std::string shapesText(const StoredProof& proof) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& s : proof.shapes) list.push_back({s.tensor, s.shape});
  return list.dump();
}

// False where the text is none of shapesText's.
bool readShapes(std::string_view text, StoredProof& proof) {
  try {
    for (const auto& s : nlohmann::json::parse(text))
      proof.shapes.push_back({s.at(0).get<std::int32_t>(), s.at(1).get<Shape>()});
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace

std::string proofVersion() {
  static const std::string version =
      std::string("sources ") + kTrustedDigest + ", " + solverVersion();
  return version;
}

template <class F>
auto CacheFile::guarded(F&& f) {
  try {
    return f();
  } catch (const sqlite::Error& error) {
    using Kind = sqlite::Error::Kind;
    throw CacheError(
        error.kind == Kind::kDamaged ? CacheError::Kind::kNoCache : CacheError::Kind::kUnusable,
        error.kind == Kind::kLocked ? "it is locked by another process" : error.what());
  }
}

CacheFile::CacheFile(std::string path, sqlite::Access access, int busyMilliseconds)
    : path_(std::move(path)) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path_, ignored);
  if (!std::filesystem::exists(status) && access != sqlite::Access::kCreate)
    throw CacheError(CacheError::Kind::kNoCache, "there is no such file");
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw CacheError(CacheError::Kind::kNoCache, "it is not a regular file");
  guarded([&] {
    // Absolute, because SQLite has names of its own that are no files (":memory:", "file:...").
    database_.emplace(std::filesystem::absolute(path_).string(), access, busyMilliseconds);
    openTable(access);
  });
}

bool CacheFile::isEmpty() {
  return database_->integer("SELECT count(*) FROM sqlite_schema") == 0 &&
         database_->integer("PRAGMA application_id") == 0 &&
         database_->integer("PRAGMA user_version") == 0;
}

void CacheFile::openTable(sqlite::Access access) {
  if (access == sqlite::Access::kCreate && isEmpty()) {
    sqlite::Transaction transaction(*database_);
    if (isEmpty()) {  // nobody else was faster
      database_->execute("PRAGMA application_id = " + std::to_string(kApplicationId));
      database_->execute("PRAGMA user_version = " + std::to_string(kSchema));
      database_->execute(
          "CREATE TABLE proofs (id INTEGER PRIMARY KEY, digest INTEGER NOT NULL, version TEXT NOT "
          "NULL, checker INTEGER NOT NULL, method INTEGER NOT NULL, "
          "form BLOB NOT NULL, form_length INTEGER NOT NULL, shapes TEXT NOT NULL, check_sum "
          "INTEGER NOT NULL, created INTEGER NOT NULL, used INTEGER NOT NULL, "
          "hits INTEGER NOT NULL)");
      database_->execute("CREATE INDEX proofs_by_digest ON proofs (digest)");
    }
    transaction.commit();
  }
  if (database_->integer("PRAGMA application_id") != kApplicationId)
    throw CacheError(CacheError::Kind::kNoCache, "it is not a proof cache");
  if (const auto schema = database_->integer("PRAGMA user_version"); schema != kSchema) {
    throw CacheError(CacheError::Kind::kNoCache, "its tables are those of format " +
                                                     std::to_string(schema) + ", not " +
                                                     std::to_string(kSchema));
  }
  sqlite::Statement(*database_, std::string("SELECT ") + kColumns +
                                    ", digest, created, used, hits FROM proofs LIMIT 0")
      .step();
}

// Without `whole` the form is left out where the rest is damaged already.
CacheRow CacheFile::decode(const sqlite::Statement& s, bool whole) {
  CacheRow row;
  row.id = s.integer(0);
  row.version = s.bytes(1);
  const std::int64_t checker = s.integer(2), method = s.integer(3);
  const std::string_view shapes = s.bytes(6);
  row.sound = checker >= 0 && checker <= static_cast<std::int64_t>(Checker::kZ3) && method >= 0 &&
              method <= static_cast<std::int64_t>(Method::kNumeric) &&
              readShapes(shapes, row.proof);
  if (!row.sound && !whole) return row;
  row.checker = static_cast<Checker>(checker);
  row.proof.method = static_cast<Method>(method);
  auto form = expanded(s.bytes(4), s.integer(5));
  row.sound = row.sound && form &&
              rowSum(row.version, checker, method, shapes, *form) == s.integer(7) &&
              isProof(row.proof.method, row.checker);
  if (form) row.form = std::move(*form);
  return row;
}

CacheFile::Found CacheFile::find(const std::string& form, Checker checker) {
  return guarded([&] {
    Found found;
    sqlite::Statement s(*database_,
                        std::string("SELECT ") + kColumns +
                            " FROM proofs WHERE digest = ? AND version = ? AND checker = ?");
    const std::string version = proofVersion();
    s.bind(1, checkSum(form)).bindText(2, version).bind(3, static_cast<std::int64_t>(checker));
    while (s.step()) {
      CacheRow row = decode(s, false);
      if (!row.sound) {
        found.damaged = true;
      } else if (row.form == form) {
        found.id = row.id;
        found.proof = std::move(row.proof);
        break;
      }
    }
    return found;
  });
}

void CacheFile::write(const std::vector<New>& proofs, const std::vector<std::int64_t>& used) {
  guarded([&] {
    const std::string version = proofVersion();
    sqlite::Transaction transaction(*database_);
    sqlite::Statement insert(*database_,
                             "INSERT INTO proofs (digest, version, checker, method, form, "
                             "form_length, shapes, check_sum, created, used, hits) "
                             "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)");
    for (const New& p : proofs) {
      if (static_cast<std::int64_t>(p.form.size()) > kMostFormBytes / 2 ||
          find(p.form, p.checker).id >= 0)
        continue;
      const auto checker = static_cast<std::int64_t>(p.checker),
                 method = static_cast<std::int64_t>(p.proof.method);
      const std::string shapes = shapesText(p.proof), form = compressed(p.form);
      insert.bind(1, checkSum(p.form))
          .bindText(2, version)
          .bind(3, checker)
          .bind(4, method)
          .bindBlob(5, form);
      insert.bind(6, static_cast<std::int64_t>(p.form.size()))
          .bindText(7, shapes)
          .bind(8, rowSum(version, checker, method, shapes, p.form));
      insert.bind(9, now()).bind(10, now()).run();
    }
    sqlite::Statement touch(*database_,
                            "UPDATE proofs SET hits = hits + 1, used = max(used, ?) WHERE id = ?");
    for (const std::int64_t id : used) touch.bind(1, now()).bind(2, id).run();
    transaction.commit();
  });
}

std::int64_t CacheFile::fileBytes() const {
  std::error_code error;
  const auto size = std::filesystem::file_size(path_, error);
  return error ? 0 : static_cast<std::int64_t>(size);
}

CacheStatistics CacheFile::statistics() {
  return guarded([&] {
    CacheStatistics result;
    result.fileBytes = fileBytes();
    sqlite::Statement s(*database_,
                        "SELECT version, count(*), sum(length(form) + length(shapes)), sum(hits) "
                        "FROM proofs GROUP BY version ORDER BY version");
    while (s.step())
      result.versions[std::string(s.bytes(0))] = {static_cast<std::size_t>(s.integer(1)),
                                                  s.integer(2), s.integer(3)};
    return result;
  });
}

std::vector<std::int64_t> CacheFile::ids(const std::string& version) {
  return guarded([&] {
    std::vector<std::int64_t> list;
    sqlite::Statement s(*database_, "SELECT id FROM proofs WHERE version = ? ORDER BY id");
    s.bindText(1, version);
    while (s.step()) list.push_back(s.integer(0));
    return list;
  });
}

std::optional<CacheRow> CacheFile::row(std::int64_t id) {
  return guarded([&]() -> std::optional<CacheRow> {
    sqlite::Statement s(*database_,
                        std::string("SELECT ") + kColumns + " FROM proofs WHERE id = ?");
    s.bind(1, id);
    if (!s.step()) return std::nullopt;
    return decode(s, true);
  });
}

PruneResult CacheFile::prune(const PruneOptions& options) {
  return guarded([&] {
    PruneResult result;
    result.bytesBefore = fileBytes();
    const std::string version = proofVersion();
    const auto remove = [&](const std::vector<std::int64_t>& rows) {
      sqlite::Statement s(*database_, "DELETE FROM proofs WHERE id = ?");
      for (const std::int64_t id : rows) s.bind(1, id).run();
      return rows.size();
    };
    {
      sqlite::Transaction transaction(*database_);
      sqlite::Statement others(*database_, "DELETE FROM proofs WHERE version <> ?");
      others.bindText(1, version).run();
      result.otherVersions = static_cast<std::size_t>(database_->changes());
      if (options.olderThanDays) {
        sqlite::Statement old(*database_, "DELETE FROM proofs WHERE used < ?");
        old.bind(1, now() - static_cast<std::int64_t>(*options.olderThanDays * 86400)).run();
        result.old = static_cast<std::size_t>(database_->changes());
      }
      std::vector<std::int64_t> damaged;
      sqlite::Statement s(*database_, std::string("SELECT ") + kColumns + " FROM proofs");
      while (s.step()) {
        if (const CacheRow row = decode(s, false); !row.sound) damaged.push_back(row.id);
      }
      s.reset();
      result.damaged = remove(damaged);
      transaction.commit();
    }
    database_->execute("VACUUM");
    // The longest unused go first. Pages are not filled evenly, so what is left may still be too
    // large: then less is left.
    for (std::int64_t target = options.maxBytes.value_or(0);
         options.maxBytes && fileBytes() > *options.maxBytes; target = target * 3 / 4) {
      sqlite::Transaction transaction(*database_);
      std::vector<std::int64_t> beyond;
      sqlite::Statement s(*database_,
                          "SELECT id, length(form) + length(shapes) FROM proofs ORDER BY used "
                          "DESC, hits DESC, id DESC");
      std::int64_t bytes = 0;
      bool any = false;
      while (s.step()) {
        any = true;
        bytes += s.integer(1) + kRowOverhead;
        if (bytes > target) beyond.push_back(s.integer(0));
      }
      s.reset();
      result.forSize += remove(beyond);
      transaction.commit();
      if (!beyond.empty()) database_->execute("VACUUM");
      if (!any) break;  // an empty table has a size, too
    }
    result.left = static_cast<std::size_t>(database_->integer("SELECT count(*) FROM proofs"));
    result.bytesAfter = fileBytes();
    return result;
  });
}

CacheFileStore::CacheFileStore(const std::string& path) : path_(path) {
  try {
    file_.emplace(path, sqlite::Access::kCreate);
  } catch (const CacheError& error) {
    problems_.push_back("proof cache " + path_ + ": " + error.what() + "; going on without it");
  }
}

std::optional<StoredProof> CacheFileStore::find(const std::string& form, Checker checker) {
  if (!file_) return std::nullopt;
  try {
    auto found = file_->find(form, checker);
    if (found.damaged && !std::exchange(damagedRows_, true))
      problems_.push_back("proof cache " + path_ +
                          ": a damaged row is passed over (shardproof cache prune removes it)");
    if (found.id < 0) return std::nullopt;
    used_.push_back(found.id);
    return std::move(found.proof);
  } catch (const CacheError& error) {
    problems_.push_back("proof cache " + path_ + ": " + error.what() + "; going on without it");
    file_.reset();
    return std::nullopt;
  }
}

void CacheFileStore::add(const std::string& form, Checker checker, const StoredProof& proof) {
  if (!file_ || !writable_) return;
  new_.push_back({form, checker, proof});
  // A run of hours that is killed should not have been for nothing.
  if (std::chrono::steady_clock::now() - flushed_ > kLongestUnwritten) flush();
}

void CacheFileStore::flush() {
  flushed_ = std::chrono::steady_clock::now();
  const auto proofs = std::exchange(new_, {});
  const auto used = std::exchange(used_, {});
  if (!file_ || !writable_ || (proofs.empty() && used.empty())) return;
  try {
    file_->write(proofs, used);
  } catch (const CacheError& error) {
    problems_.push_back("proof cache " + path_ + ": " + error.what() +
                        "; nothing is written to it");
    writable_ = false;  // what it holds can still be read
  }
}

}  // namespace shardproof
