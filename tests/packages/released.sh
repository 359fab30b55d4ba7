#!/bin/sh
# released.sh TAG   builds the release of TAG, installs each file of it, and acquires a lock with
#                   each. For root in an empty Debian: `make test-release`.
set -eu

make release TAG="$1"
folder=$PWD/target/release-files
version=${1#v}
module=github.com/redis-lock/redis-lock/clients/go
empty=$(mktemp -d)
cd "$folder"
sha256sum --check --quiet --strict SHA256SUMS
python3 -m json.tool redis-lock-"$version".intoto.json >/dev/null

# start PORT MODULE: starts a server with the module and acquires a lock there.
start() {
  redis-server --port "$1" --save '' --daemonize yes --loadmodule "$2" >/dev/null
  until redis-cli -p "$1" ping >/dev/null 2>&1; do sleep 0.1; done
  [ "$(redis-cli -p "$1" LOCK.ACQUIRE a me PX 1000 | head -n 1)" = me ]
}

apt-get install --yes --quiet --no-install-recommends "$folder"/redis-lock_*.deb php-cli php-redis php-zip rpm2cpio cpio >/dev/null
start 6379 /usr/lib/redis/modules/libredis_lock.so
[ "$(redis-lock --version)" = "redis-lock $version" ]
redis-lock ls >/dev/null
echo 'released: the Debian package'

cd "$empty"
tar xzf "$folder/redis-lock-$version-$(uname -m)-unknown-linux-gnu.tar.gz"
PREFIX=$empty/prefix sh redis-lock-*/scripts/install.sh install >/dev/null
start 6380 "$empty/prefix/lib/redis/modules/libredis_lock.so"
echo 'released: the tarball'

mkdir rpm
(cd rpm && rpm2cpio "$folder"/redis-lock-*.rpm | cpio --extract --quiet --make-directories)
start 6381 "$empty/rpm/usr/lib/redis/modules/libredis_lock.so"
echo 'released: the files of the RPM'

python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check "$folder"/*.whl
python/bin/python -c 'import redis, redislock
with redislock.Locks(redis.Redis()).lock("python") as grant: print("released:", redislock.__version__, grant.fence)'

mkdir node && cd node
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund "$folder/redis-lock-client-$version.tgz" ioredis
cat >first.mjs <<'END'
import { Redis } from 'ioredis';
import { Locks } from '@redis-lock/client/ioredis';
const redis = new Redis();
await new Locks(redis).lock('node', {}).using(async (grant) => console.log('released: Node', grant.fence));
await redis.quit();
END
node first.mjs

mkdir -p "$empty/proxy/$module/@v" "$empty/go" && cd "$empty/go"
for end in info mod zip; do cp "$folder/redis-lock-go-$version.$end" "$empty/proxy/$module/@v/v$version.$end"; done
cat >main.go <<END
package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	redislock "$module"
)

func main() {
	locks, err := redislock.New(redis.NewClient(&redis.Options{}))
	if err != nil {
		panic(err)
	}
	lock, err := locks.Lock("go")
	if err != nil {
		panic(err)
	}
	grant, err := lock.Acquire(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println("released: Go", grant.Fence())
}
END
go mod init first >/dev/null 2>&1
GOPROXY=file://$empty/proxy,$(go env GOPROXY)
export GOPROXY GONOSUMDB=$module GOFLAGS=-mod=mod
go get "$module@v$version" >/dev/null 2>&1
go run .

mkdir "$empty/php" && cd "$empty/php"
cat >composer.json <<END
{"repositories": [{"type": "artifact", "url": "$folder"}, {"packagist.org": false}],
 "minimum-stability": "RC", "require": {"redis-lock/client": "$version"}}
END
COMPOSER_ALLOW_SUPERUSER=1 composer install --quiet --no-interaction
php -r 'require "vendor/autoload.php"; $redis = new Redis(); $redis->connect("127.0.0.1");
$grant = (new RedisLock\Locks($redis))->lock("php")->acquire(1.0); $grant->release();
echo "released: PHP $grant->fence\n";'

mkdir "$empty/java" && cd "$empty/java"
jar --extract --file "$folder/redis-lock-java-$version.zip"
rm -rf "$HOME/.m2/repository/io/github/redis-lock" # Maven put its builds there too
cat >pom.xml <<END
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>a</groupId><artifactId>a</artifactId><version>1</version>
  <repositories><repository><id>bundle</id><url>file://$PWD</url></repository></repositories>
  <dependencies>
    <dependency>
      <groupId>io.github.redis-lock</groupId><artifactId>redis-lock-spring-boot-starter</artifactId><version>$version</version>
    </dependency>
    <dependency><groupId>redis.clients</groupId><artifactId>jedis</artifactId><version>8.0.2</version></dependency>
  </dependencies>
</project>
END
mvn --quiet --batch-mode dependency:build-classpath -Dmdep.outputFile=classpath
cat >First.java <<'END'
import io.github.redislock.Locks;
import io.github.redislock.jedis.JedisLink;
import java.time.Duration;
import redis.clients.jedis.RedisClient;

class First {
    public static void main(String[] words) throws Exception {
        try (var jedis = RedisClient.create("redis://localhost:6379");
                var locks = new Locks(new JedisLink(jedis));
                var hold = locks.lock("java").acquire(Duration.ofSeconds(1))) {
            System.out.println("released: Java " + hold.fence());
        }
    }
}
END
java -cp "$(cat classpath)" First.java
echo 'released: all of it installs and locks'

# Another clone, cargo's home and build directory. The profile is that of the release.
git clone --quiet "$folder/../release-tree" "$empty/again"
mkdir "$empty/cargo"
cp "${CARGO_HOME:-$HOME/.cargo}/config.toml" "$empty/cargo/" 2>/dev/null || true
profile=$(echo "$folder"/*.profdata)
(cd "$empty/again" && CARGO_HOME=$empty/cargo CARGO_TARGET_DIR=$empty/build PROFILE=$profile make dist >/dev/null 2>&1)
for tarball in "$folder"/redis-lock*"-$(uname -m)-unknown-linux-gnu.tar.gz"; do
  cmp "$tarball" "$empty/build/dist/${tarball##*/}"
done
echo 'released: the same tarballs from another folder'
