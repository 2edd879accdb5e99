// SPDX-License-Identifier: Apache-2.0
// SQLite, as far as the proof cache needs it; the only header that knows the library.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace shardproof::sqlite {

class Error : public std::runtime_error {
 public:
  enum class Kind : std::uint8_t {
    kDamaged,
    kLocked,
    kOther
  };  // kDamaged: the file is no database, or not a whole one
  Error(Kind kind_, const std::string& what) : std::runtime_error(what), kind(kind_) {}
  Kind kind;
};

enum class Access : std::uint8_t { kRead, kWrite, kCreate };

class Database {
 public:
  Database(const std::string& file, Access access, int busyMilliseconds);
  void execute(const char* sql) { execute(std::string(sql)); }
  void execute(const std::string& sql);
  std::int64_t integer(const std::string& sql);  // the first column of the first row
  int changes() const;                           // rows that the last statement changed
  sqlite3* handle() const { return handle_.get(); }

 private:
  struct Close {
    void operator()(sqlite3* handle) const;
  };
  std::unique_ptr<sqlite3, Close> handle_;
};

// One prepared statement. Parameters are bound in order from 1; texts and blobs must live until the
// statement is reset.
class Statement {
 public:
  Statement(const Database& database, const std::string& sql);
  Statement& bind(int index, std::int64_t value);
  Statement& bindText(int index, std::string_view text);
  Statement& bindBlob(int index, std::string_view bytes);
  bool step();  // is there a row?
  void run() {
    step();
    reset();
  }
  void reset();  // also gives back the lock that reading holds
  std::int64_t integer(int column) const;
  std::string_view bytes(
      int column) const;  // until the next step or reset; empty where the column is null

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  const Database* database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

// Rolled back unless committed. Asks for the lock at once: a transaction that reads first and then
// wants to write cannot wait for another that does the same.
class Transaction {
 public:
  explicit Transaction(Database& database) : database_(database) {
    database_.execute("BEGIN IMMEDIATE");
  }
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() {
    database_.execute("COMMIT");
    done_ = true;
  }

 private:
  Database& database_;
  bool done_ = false;
};

}  // namespace shardproof::sqlite
