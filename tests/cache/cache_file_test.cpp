// SPDX-License-Identifier: Apache-2.0
// The file: what it gives back, and all the ways in which it can be none, damaged or in use.
#include "cache/cache_file.h"
#include "cache/trusted_digest.h"

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "ops/registry.h"
#include "small_stage.h"

namespace shardproof {
namespace {

const StoredProof kProof{Method::kNormalForm, {{0, {2, 1}}, {5, {}}}};
const StoredProof kSolved{Method::kSolver, {}};

class CacheFileTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.write(name, ""); }
  // A cache that holds `count` proofs with forms "form 0", "form 1", ...
  std::string filled(int count = 1, const std::string& name = "cache.db") const {
    const std::string file = path(name);
    CacheFileStore store(file);
    for (int i = 0; i < count; ++i) store.add("form " + std::to_string(i), Checker::kAuto, kProof);
    store.flush();
    EXPECT_EQ(store.problems(), std::vector<std::string>{});
    return file;
  }
  static void change(const std::string& file, const std::string& sql) {
    sqlite::Database(file, sqlite::Access::kWrite, 1000).execute(sql);
  }
  static std::string content(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  }
  // Goes on with a file that is no use, and says so in one line.
  static void expectUnused(const std::string& file, const std::string& why) {
    CacheFileStore store(file);
    EXPECT_EQ(store.find("form 0", Checker::kAuto), std::nullopt);
    store.add("form 0", Checker::kAuto, kProof);
    store.flush();
    EXPECT_EQ(store.find("form 0", Checker::kAuto), std::nullopt);
    ASSERT_EQ(store.problems().size(), 1u) << why;
    EXPECT_NE(store.problems()[0].find(why), std::string::npos) << store.problems()[0];
    EXPECT_NE(store.problems()[0].find(file), std::string::npos);
    EXPECT_EQ(store.problems()[0].find('\n'), std::string::npos);
  }

  test::TemporaryDirectory directory_;
};

TEST_F(CacheFileTest, GivesBackWhatWasLeft) {
  const std::string file = path("cache.db"),
                    odd = std::string("a\0b\xFF", 4) + std::string(100'000, 'x');
  {
    CacheFileStore store(file);
    store.add(odd, Checker::kAuto, kProof);
    store.add(odd, Checker::kZ3, kSolved);
    store.add("", Checker::kAuto, kSolved);
    store.flush();
  }
  CacheFileStore store(file);
  EXPECT_EQ(store.find(odd, Checker::kAuto), kProof);
  EXPECT_EQ(store.find(odd, Checker::kZ3), kSolved);
  EXPECT_EQ(store.find("", Checker::kAuto), kSolved);
  EXPECT_EQ(store.find("", Checker::kZ3), std::nullopt);
  EXPECT_EQ(store.find(odd + "x", Checker::kAuto), std::nullopt);
  EXPECT_EQ(store.problems(), std::vector<std::string>{});
}

TEST_F(CacheFileTest, FormsAreComparedNotTheirCheckSums) {
  const std::string file = filled(2);
  // Both rows are now found by the check sum of "form 0".
  change(file,
         "UPDATE proofs SET digest = (SELECT digest FROM proofs WHERE id = 1), method = method");
  CacheFileStore store(file);
  EXPECT_TRUE(store.find("form 0", Checker::kAuto));
  change(file, "DELETE FROM proofs WHERE id = 1");
  EXPECT_EQ(store.find("form 0", Checker::kAuto), std::nullopt);
  EXPECT_EQ(store.problems(), std::vector<std::string>{});
}

TEST_F(CacheFileTest, AnotherVersionIsNotBelieved) {
  const std::string file = filled();
  for (const std::string version : {"operators 1, checker 1, Z3 4.8.12.0", "", "operators 2"}) {
    change(file, "UPDATE proofs SET version = '" + version + "'");
    EXPECT_EQ(CacheFileStore(file).find("form 0", Checker::kAuto), std::nullopt);
  }
  EXPECT_NE(proofVersion().find(std::string("sources ") + kTrustedDigest), std::string::npos);
}

TEST_F(CacheFileTest, ADamagedRowIsPassedOverAndReportedOnce) {
  for (const std::string damage :
       {"method = 2", "method = 4", "method = 99", "checker = 7", "shapes = '[[0,[2,2]],[5,[]]]'",
        "shapes = '{'", "shapes = '[1]'", "form = x'00'", "form = zeroblob(3)",
        "form = substr(form, 1, length(form) - 1)", "form_length = form_length + 1",
        "form_length = -1", "form_length = 999999999999", "form_length = 'x'",
        "check_sum = check_sum + 1", "form = ''"}) {
    const std::string file = filled(2);
    change(file, "UPDATE proofs SET " + damage);
    CacheFileStore store(file);
    EXPECT_EQ(store.find("form 0", Checker::kAuto), std::nullopt) << damage;
    EXPECT_EQ(store.find("form 1", Checker::kAuto), std::nullopt) << damage;
    EXPECT_EQ(store.problems().size(), damage == "checker = 7" ? 0u : 1u)
        << damage;  // of another checker, as far as one can see
    // A new proof takes its place, and the damaged one can be removed.
    store.add("form 0", Checker::kAuto, kProof);
    store.flush();
    EXPECT_EQ(store.find("form 0", Checker::kAuto), kProof) << damage;
    EXPECT_EQ(CacheFile(file, sqlite::Access::kWrite).prune({}).damaged, 2u) << damage;
    EXPECT_EQ(CacheFileStore(file).find("form 0", Checker::kAuto), kProof) << damage;
    std::filesystem::remove(file);
  }
}

TEST_F(CacheFileTest, WhatIsNoCacheIsNotTouched) {
  const std::string text =
      directory_.write("text",
                       "not a database at all, but a text that someone wants to keep, longer than "
                       "a header of a hundred bytes would be");
  const std::string foreign = path("foreign.db"), schema = filled(1, "schema.db"),
                    columns = filled(1, "columns.db");
  change(foreign, "CREATE TABLE t (x)");
  change(schema, "PRAGMA user_version = 2");
  change(columns, "ALTER TABLE proofs DROP COLUMN shapes");
  for (const auto& [file, why] : std::vector<std::pair<std::string, std::string>>{
           {text, "not a database"},
           {foreign, "not a proof cache"},
           {schema, "format 2"},
           {columns, "shapes"},
           {std::filesystem::temp_directory_path().string(), "not a regular file"},
           {text + "/below", "unable to open"},
           {text + ".d/below", "unable to open"}}) {
    const std::string before = content(file);
    expectUnused(file, why);
    EXPECT_EQ(content(file), before) << file;
  }
}

TEST_F(CacheFileTest, ATruncatedFileIsReportedOrHoldsWhatItHolds) {
  const std::string file = filled(400), whole = content(file);
  int reported = 0;
  for (std::size_t size = 0; size < whole.size(); size += 1111) {
    const std::string part = directory_.write("part.db", whole.substr(0, size));
    CacheFileStore store(part);
    for (int i = 0; i < 400; i += 7) {
      EXPECT_EQ(store.find("form " + std::to_string(i), Checker::kAuto).value_or(kProof), kProof);
      EXPECT_EQ(store.find("from " + std::to_string(i), Checker::kAuto), std::nullopt);
    }
    store.add("new", Checker::kAuto, kProof);
    store.flush();
    reported += !store.problems().empty();
    EXPECT_LE(store.problems().size(), 2u);
  }
  EXPECT_GT(reported, 10);
}

TEST_F(CacheFileTest, DamagedBytesNeverMakeAProof) {
  const std::string file = filled(40), whole = content(file);
  std::uint32_t state = 12345;
  const auto random = [&] { return state = state * 1664525 + 1013904223; };
  for (int i = 0; i < 200; ++i) {
    std::string damaged = whole;
    for (int k = 0; k < 20; ++k)
      damaged[random() % damaged.size()] = static_cast<char>(random() >> 24);
    CacheFileStore store(directory_.write("damaged.db", damaged));
    for (int f = 0; f < 40; f += 3) {
      EXPECT_EQ(store.find("form " + std::to_string(f), Checker::kAuto).value_or(kProof), kProof)
          << i;
      EXPECT_EQ(store.find("form " + std::to_string(f), Checker::kZ3), std::nullopt) << i;
      EXPECT_EQ(store.find("fern " + std::to_string(f), Checker::kAuto), std::nullopt) << i;
    }
  }
}

TEST_F(CacheFileTest, ALockedFileIsReadOnAndNotWaitedForForEver) {
  const std::string file = filled();
  sqlite::Database other(file, sqlite::Access::kWrite, 0);
  CacheFile mine(file, sqlite::Access::kWrite, 50);
  other.execute("BEGIN IMMEDIATE");
  EXPECT_GE(mine.find("form 0", Checker::kAuto).id, 0);
  EXPECT_THROW(mine.write({{"new", Checker::kAuto, kProof}}, {}), CacheError);
  other.execute("COMMIT");
  other.execute("BEGIN EXCLUSIVE");
  try {
    mine.find("form 0", Checker::kAuto);
    ADD_FAILURE() << "read in spite of the lock";
  } catch (const CacheError& error) {
    EXPECT_EQ(error.kind, CacheError::Kind::kUnusable);
    EXPECT_STREQ(error.what(), "it is locked by another process");
  }
  other.execute("COMMIT");
  mine.write({{"new", Checker::kAuto, kProof}}, {});
  EXPECT_GE(mine.find("new", Checker::kAuto).id, 0);
}

TEST_F(CacheFileTest, SeveralProcessesWriteAtOnce) {
  const std::string file = path("cache.db");
  constexpr int kProcesses = 8, kRounds = 6;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      CacheFileStore store(file);
      bool good = true;
      for (int r = 0; r < kRounds; ++r) {
        store.add("shared " + std::to_string(r), Checker::kAuto, kProof);
        store.add("own " + std::to_string(p) + " " + std::to_string(r), Checker::kAuto, kProof);
        store.flush();
        good = good && store.find("shared " + std::to_string(r), Checker::kAuto) &&
               store.find("own " + std::to_string(p) + " " + std::to_string(r), Checker::kAuto);
      }
      ::_exit(good && store.problems().empty() ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  CacheFile cache(file, sqlite::Access::kRead);
  EXPECT_EQ(cache.ids(proofVersion()).size(),
            static_cast<std::size_t>((kProcesses + 1) * kRounds));  // nothing twice
  EXPECT_EQ(
      sqlite::Database(file, sqlite::Access::kRead, 0)
          .integer("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'"),
      1);
}

TEST_F(CacheFileTest, CountsWhatWasUsed) {
  const std::string file = filled(3);
  {
    CacheFileStore store(file);
    store.find("form 1", Checker::kAuto);
    store.find("form 2", Checker::kAuto);
    store.find("none", Checker::kAuto);
    store.flush();
  }
  const auto statistics = CacheFile(file, sqlite::Access::kRead).statistics();
  ASSERT_EQ(statistics.versions.size(), 1u);
  EXPECT_EQ(statistics.versions.at(proofVersion()).rows, 3u);
  EXPECT_EQ(statistics.versions.at(proofVersion()).hits, 2);
  EXPECT_EQ(statistics.fileBytes, static_cast<std::int64_t>(std::filesystem::file_size(file)));
}

TEST_F(CacheFileTest, PruneRemovesOtherVersionsOldOnesAndDownToASize) {
  const std::string file = filled(200);
  change(file, "UPDATE proofs SET version = 'other' WHERE id <= 20");
  change(file, "UPDATE proofs SET used = used - 86400 * 10 WHERE id BETWEEN 21 AND 50");
  change(file, "UPDATE proofs SET used = used - 86400 WHERE id BETWEEN 51 AND 100");
  CacheFile cache(file, sqlite::Access::kWrite);
  PruneResult r = cache.prune({});
  EXPECT_EQ(r.otherVersions, 20u);
  EXPECT_EQ(r.left, 180u);
  PruneOptions options;
  options.olderThanDays = 5;
  r = cache.prune(options);
  EXPECT_EQ(r.old, 30u);
  EXPECT_EQ(r.left, 150u);
  // Down to a size: those of the last day stay for longest.
  options = {};
  options.maxBytes = r.bytesAfter * 2 / 3;
  r = cache.prune(options);
  EXPECT_LE(r.bytesAfter, *options.maxBytes);
  EXPECT_EQ(r.left + r.forSize, 150u);
  EXPECT_GT(r.left, 0u);
  EXPECT_GE(cache.find("form 199", Checker::kAuto).id, 0);
  EXPECT_EQ(cache.find("form 60", Checker::kAuto).id, -1);
  options.maxBytes = 0;
  r = cache.prune(options);
  EXPECT_EQ(r.left, 0u);
}

}  // namespace
}  // namespace shardproof
