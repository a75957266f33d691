"""
How pylogbroker is packed: every room, the Twisted plugin, and the sample configuration.

Three things here are not the usual. C{twisted.plugins} is listed as a package although it has no
C{__init__.py}: it is Twisted's own package, to which a distribution adds one file. C{package_dir}
says that packages lie beside this file, which makes C{pip install -e .} put this folder itself on
C{sys.path}; an editable install by an import finder would hide the plugin, because Twisted looks
for plugins in the folders of C{sys.path}. And C{etc/broker.properties}, of which there is one copy,
is put beside L{pylogbroker.config.brokersettings} in a wheel.

The C speed-up is built when the environment says C{PYLOGBROKER_SPEEDUPS=1}, and only then: so what
an installation runs does not depend on whether its machine has a compiler. Without one, that fails.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
SAMPLE = "etc/broker.properties"
SAMPLE_PACKAGE = "pylogbroker.config"
SPEEDUPS = "pylogbroker/_speedups.c"


def version() -> str:
    """The version, read from the package without importing it."""
    found = re.search(
        r'^__version__ = "([^"]+)"$',
        (HERE / "pylogbroker" / "__init__.py").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    if found is None:
        raise SystemExit("pylogbroker/__init__.py has no __version__")
    return found.group(1)


class BuildWithSample(build_py):
    """
    Copies the sample configuration into the package; an editable install reads it where it lies.

    Begins with an empty folder: setuptools would put modules into the wheel that an earlier build
    left there and that are gone since.
    """

    def samplePath(self) -> str:
        return str(Path(self.build_lib, *SAMPLE_PACKAGE.split("."), Path(SAMPLE).name))

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            target = self.samplePath()
            self.mkpath(str(Path(target).parent))
            self.copy_file(str(HERE / SAMPLE), target, preserve_mode=False)

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), SAMPLE, SPEEDUPS]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = list(super().get_outputs(include_bytecode))
        return outputs if self.editable_mode else [*outputs, self.samplePath()]


TLS = ["twisted[tls]"]
SPARK = ["pyspark[sql]>=4.2,<5", "pandas>=2.2,<3", "protobuf>=6"]
AVRO = ["avro>=1.12,<2", "fastavro>=1.9,<2"]
TASKS = ["rocksdict>=0.3.24,<0.4"]
TOPOLOGIES = ["msgspec>=0.19,<1"]
TEST = [
    *TLS,
    *SPARK,
    *AVRO,
    *TASKS,
    *TOPOLOGIES,
    "aiokafka[lz4,snappy,zstd]>=0.14",
    "confluent-kafka[schemaregistry]>=2.6",
    "coverage[toml]>=7.10",
    "duckdb>=1.1,<3",
    "hypothesis>=6.100",
    "import-linter>=2.1",
    "kafka-python[lz4,snappy,zstd]>=3",
    "kio>=0.6.5,<0.7",
    "matplotlib>=3.8",
    "mypy>=1.13",
    "mypy-zope>=1.0.9",
    "py4j>=0.10.9.7,<0.11",
    "pytest>=8",
    "ruff>=0.8",
    "setuptools>=70.1",
    "streamparse>=5.0.1,<6",
]

setup(
    name="pylogbroker",
    version=version(),
    description=(
        "A distributed, append-only publish-subscribe log for Python, byte-compatible with"
        " Kafka 0.7"
    ),
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    package_dir={"": "."},
    packages=[*find_packages(include=["pylogbroker", "pylogbroker.*"]), "twisted.plugins"],
    py_modules=["pyspark_pylogbroker"],
    package_data={"pylogbroker": ["py.typed", "console/page/*"]},
    ext_modules=(
        [Extension("pylogbroker._speedups", [SPEEDUPS])]
        if os.environ.get("PYLOGBROKER_SPEEDUPS") == "1"
        else []
    ),
    zip_safe=False,
    cmdclass={"build_py": BuildWithSample},
    entry_points={
        "console_scripts": ["pylogbroker = pylogbroker.__main__:main"],
        "pytest11": ["pylogbroker = pylogbroker.testing.pytestplugin"],
    },
    install_requires=[
        "twisted>=22.10",
        "cachetools>=5.3",
        "crc32c>=2.7",
        "crcmod>=1.7",
        "cramjam>=2.8",
        "google-re2>=1.1.20240702",
        "kazoo>=2.9",
        "zlib-ng>=0.5",
    ],
    extras_require={
        "tls": TLS,
        "spark": SPARK,
        "avro": AVRO,
        "tasks": TASKS,
        "topologies": TOPOLOGIES,
        "test": TEST,
        "fuzz": ["atheris>=2.3"],
        "dev": [*TEST, "pre-commit>=3.5", "towncrier>=23.11"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Framework :: Twisted",
        "Intended Audience :: Developers",
        "License :: OSI Approved :: MIT License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: System :: Distributed Computing",
        "Topic :: System :: Networking",
        "Typing :: Typed",
    ],
)
