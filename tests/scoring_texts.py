"""German sentences, written for these tests; noisy copies stand in for systems. And sacreBLEU."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from onmt_evsoftmax.score.scores import Cell, Comparison, Report, Row

GERMAN = """\
Die Bäckerin öffnet früh am Morgen ihr Geschäft in der Lübecker Straße.
Über den Dächern der Stadt kreisen drei große Störche.
„Hätten Sie vielleicht noch ein Stück Käsekuchen?“, fragte der ältere Herr höflich.
Macht Sie das neugierig?
Im Jahr 2014 überquerten rund 3.500 Läufer die Ziellinie, 12 % mehr als im Vorjahr.
Meine Großmutter erzählt gern, wie sie als Mädchen über die Felder lief.
Der Schlüssel liegt unter der grünen Fußmatte – wie immer.
Weil es stark regnete, mussten die Schüler im überdachten Hof warten.
Er hat das Gefühl, dass ihm niemand zuhört, obwohl alle nicken.
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.
Das Gerät lässt sich ohne Werkzeug öffnen, schließen und säubern.
Ärzte empfehlen, täglich mindestens zwei Liter Wasser zu trinken.
Können wir das Gespräch auf nächsten Dienstag verschieben?
In der Küche riecht es nach gebratenen Zwiebeln und frischem Brot.
Ein Hund mit nassem Fell schüttelt sich neben dem Brunnen.
Die Übersetzung ist flüssig, trifft aber nicht immer den Ton.
Niemand wusste, weshalb die Brücke über Nacht gesperrt worden war.
Sie lernte Französisch, indem sie jeden Abend einen Brief schrieb.
Öffentliche Verkehrsmittel sind in dieser Gegend leider unzuverlässig.
Vor dem Rathaus spielen zwei Musiker: eine Geigerin und ein Trommler.
Das Kind bläst die Kerzen aus, und alle klatschen.
Wir müssen die Äpfel pflücken, bevor der erste Frost kommt.
Der Zug nach München fährt heute von Gleis 7 ab.
„Nein“, sagte sie, „so einfach ist das nicht.“
Auf dem Foto sieht man einen Mann, der ein rotes Fahrrad repariert.
Früher war die Fabrik der größte Arbeitgeber der Region.
Die Maßnahmen gelten ab sofort für sämtliche Behörden des Landes.
Trotz der Kälte saßen sie stundenlang draußen und redeten.
Je länger man übt, desto leichter fällt es einem.
Ich hätte gern gewusst, ob dieses Buch auch auf Türkisch erschienen ist.
Der Künstler malte Gänse, Kühe und einen überraschten Hahn.
Ohne Brille kann mein Vater kein einziges Wort lesen.
Das Experiment misslang, weil die Flüssigkeit zu schnell abkühlte.
Am Ende des Tals steht eine kleine, weiß gestrichene Kapelle.
Jemand hat die Tür nicht richtig zugemacht.
Die Forscher veröffentlichten ihre Ergebnisse in einer Fachzeitschrift.
Bitte füllen Sie das Formular vollständig und leserlich aus!
Zwischen Köln und Düsseldorf staut sich der Verkehr auf 15 Kilometern.
Mit großen Augen schaute das Mädchen dem Zauberer zu.
Es wäre schön, wenn du am Wochenende vorbeikämest.
Aufmerksamkeit ist, so gesehen, ein gewichtetes Mittel über Wörter.
Spärliche Gewichte erklären mehr, denn Nullen sind Nullen.
Ein älterer Herr füttert im Park die Enten und die Spatzen.
Natürlich können Fehler passieren; entscheidend ist, was man daraus macht.
Der Fluss trat über die Ufer und überschwemmte mehrere Höfe.
Danach räumten die Freiwilligen den Müll vom Strand weg.
Sie trägt einen gelben Regenmantel und hält einen Schirm.
Ja.""".splitlines()

ENGLISH = """\
The baker opens her shop early in the morning.
Three large storks are circling over the roofs of the town.
Would you possibly have another piece of cheesecake?
Does that make you curious?
My grandmother likes to tell how she was running across the fields.
The pupils had to wait in the yard because it was raining heavily.
He feels that nobody listens to him although everybody nods.
Doctors recommend drinking at least two litres of water daily.
The translations are fluent but do not always hit the right tone.
Researchers published their findings in several scientific journals.""".splitlines()


def noisy(lines: Sequence[str], strength: float, seed: int) -> list[str]:
    """Lines with words replaced, dropped, repeated, moved, cut short or lower-cased."""
    random_ = random.Random(seed)
    vocabulary = [word for line in lines for word in line.split()]
    return [_noisy_line(line.split(), vocabulary, strength, random_) for line in lines]


def _noisy_line(
    words: list[str], vocabulary: list[str], strength: float, random_: random.Random
) -> str:
    result: list[str] = []
    for word in words:
        if random_.random() >= strength:
            result.append(word)
            continue
        kind = random_.randrange(6)
        if kind == 0:
            result.append(random_.choice(vocabulary))
        elif kind == 1:
            result += [word, random_.choice(vocabulary)]
        elif kind == 2:
            result.insert(random_.randint(0, len(result)), word)
        elif kind == 3:
            result.append(word[: max(1, len(word) - 2)])
        elif kind == 4:
            result.append(word.lower())
    return " ".join(result)


def corpus(copies: int = 5) -> list[str]:
    """A reference of a few hundred lines: the sentences, then shuffled and shortened ones."""
    random_ = random.Random(7)
    lines = list(GERMAN)
    for _ in range(copies - 1):
        for line in GERMAN:
            words = line.split()
            start = random_.randrange(max(1, len(words) - 3))
            lines.append(" ".join(words[start:] + random_.choice(GERMAN).split()[:4]))
    return lines


def write(path: Path, lines: Sequence[str]) -> str:
    """Write lines as a text file and return its name."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def sacrebleu(command: str) -> str:
    """Standard output of sacreBLEU's own command line."""
    return subprocess.run(
        [sys.executable, "-m", "sacrebleu", *command.split()],
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout


def sample_report() -> Report:
    """Two metrics, three systems: seeds, stars of both levels, a name LaTeX must not run."""
    clear = Comparison(-2.0, (-3.0, -1.0), 0.001, 0.004)
    weak = Comparison(-0.5, (-0.9, -0.1), 0.004, 0.03)
    none = Comparison(0.0, (-0.5, 0.5), 0.9, 0.004)
    return Report(
        rows=[
            Row("BLEU", "nrefs:1", True, {
                "a_b&c": Cell((20.0, 22.0), clear), "soft": Cell((22.5,), weak),
                "ev": Cell((23.0, 23.5, 24.0)),
            }),
            Row("TER", "nrefs:1", False, {
                "a_b&c": Cell((60.0,), none), "soft": Cell((50.0,), weak), "ev": Cell((55.0,)),
            }),
        ],
        systems={"a_b&c": ["1", "2"], "soft": ["1"], "ev": ["1", "2", "3"]},
        lines=7,
        baseline="ev",
        resamples=1000,
        seed=1,
    )  # fmt: skip
