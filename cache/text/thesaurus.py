"""List synonyms, and words of one kind that are not synonyms: written for this project, for plain English questions.

Synonyms accept a paraphrase that a comparison of spellings would refuse; kinds refuse what a vector considers similar:
a cat and a dog, a knee and an elbow, Java and Python.

A word with several meanings is in the group of each (`store` with `shop`, and with `save`): it is then compared with
the words of all of them, which does not make these synonyms of each other. If one of its meanings has no synonym and
would be mistaken for the other (`wood` for a forest), it is in no group. It is never the first of a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cache.text.words import word_set


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return each first element with all its second ones, in order and each once."""
    grouped: dict[str, dict[str, None]] = {}
    for word, group in pairs:
        grouped.setdefault(word, {})[group] = None
    return {word: list(groups) for word, groups in grouped.items()}


_SYNONYMS = """
buy purchase acquire; begin start commence initiate launch; end finish conclude terminate; fix repair mend
troubleshoot; resolve solve; photo picture photograph image; phone telephone cellphone smartphone mobile; car
automobile vehicle; mail email; info information; differ difference different distinction distinguish differentiate;
colour color; centre center; behaviour behavior; favourite favorite; help assist aid support; make create produce
craft; build construct; big large huge; small little tiny; quick fast rapid speedy quickly rapidly swiftly; happen
occur; resign quit; happy glad joyful; sad unhappy sorrowful; rich wealthy affluent; smart clever intelligent
brilliant; brave courageous; scared frightened afraid fearful; angry mad furious; important significant crucial
essential vital; hard difficult tough challenging; easy simple effortless easily; wrong incorrect inaccurate; correct
accurate; drug medicine medication; doctor physician; ill sick unwell; disease illness sickness; injury wound; lawyer
attorney; contract agreement; law legislation; court tribunal; job employment occupation; salary wage pay income
earnings; boss manager supervisor; employee worker; company firm business corporation enterprise; meeting standup;
customer client consumer; shop store; shipment delivery parcel; refund reimbursement reimburse; fee charge; bill
invoice; discount rebate; expense cost expenditure; house home; flat apartment; elevator lift; holiday vacation; trip
journey travel; street road; city town; country nation; trash garbage rubbish; sofa couch; cookie biscuit; soccer
football; truck lorry; petrol gasoline; advantage benefit pro upside; disadvantage drawback con downside; effect
consequence impact outcome; cause reason; way method approach technique procedure manner; step stage; tip advice
suggestion hint; goal aim objective; problem issue trouble; mistake error; bug defect; answer reply response respond;
question query; ask inquire enquire; explain clarify; describe detail; summary summarize summarise overview; list
enumerate itemize; suggest propose; write compose draft author; tell inform notify advise; show display present; give
provide supply offer; find locate discover; choose select pick opt; decide determine; check verify confirm validate;
try attempt; use utilize utilise employ usage; need require necessary; want wish desire; allow permit authorize
authorise let; approve accept agree; reject decline refuse deny; cancel abort scrap; delay postpone defer; arrange
schedule plan; enable activate; disable deactivate; increase raise boost grow enlarge lift; decrease reduce lower
lessen diminish cut decline; improve enhance; change modify alter adjust edit revise amend; update upgrade; replace
substitute swap; delete remove erase eliminate discard purge; add insert append; keep retain maintain preserve; save
store; shut close; install setup; connect link attach join; disconnect detach; merge combine integrate unite; split
separate divide; copy duplicate clone replicate; move transfer relocate; send transmit; distribute share; publish
release deploy; rollback revert undo; run execute; stop halt cease discontinue quit; continue proceed resume; prolong
extend lengthen; skip omit; hide conceal; register enroll enrol signup; password passcode; website site webpage;
internet web online; app program; pc computer desktop; parameter argument; folder directory; file document; slow
sluggish; safe secure; danger risk hazard; dangerous risky hazardous unsafe harmful; exercise workout; food meal; eat
consume; tired exhausted weary; pain ache; teach instruct; learn study; student pupil; teacher instructor; university
college; speak talk; meaning definition mean define; interesting fascinating; famous renowned; common typical usual
frequent; rare uncommon; strange weird odd; beautiful pretty; old elderly; good great excellent; best greatest top
finest ideal optimal; bad awful terrible; better superior; worse inferior; often frequently; people person individual
human; money cash; earn gain; stock share; cheap inexpensive affordable; expensive costly; real genuine; fake
counterfeit; complaint grievance; component constituent part; characteristic feature trait attribute; type kind sort
category; example instance sample; world globe earth; population inhabitant; remember recall; think believe consider
thought; opinion view thought; like enjoy; love adore; hate despise detest; whole entire full; near nearby close; far
distant; purple violet; gray grey; aeroplane airplane plane aircraft; bike bicycle; sea ocean; visible noticeable;
organized organised; thankful grateful; religious spiritual; humble modest; rude impolite; polite courteous; lazy
idle; active energetic; responsible accountable; powerful mighty; weak feeble; strong sturdy; calm relaxed serene;
nervous anxious; confident assured; honest truthful; creative inventive; contain comprise; calculate compute; compare
comparison; analyze analyse examine; evaluate assess; identify recognize recognise; understand comprehend grasp;
achieve accomplish attain reach; overcome conquer; avoid prevent evade; protect guard defend; attack assault; treat
cure heal; die death; kill murder; baby infant; buddy friend pal; enemy foe; singer vocalist; prize award; opportunity
chance; probability likelihood odds chance; handle manage; reliable dependable trustworthy; incoming inbound; outgoing
outbound; restrict limit; brief concise short; regularly routinely routine regular; conversation chat; evidence proof;
lawsuit litigation; gift present
"""
GROUPS: Final = tuple(tuple(group.split()) for group in _SYNONYMS.split(";"))
SYNONYM: Final = {
    word: tuple(heads) for word, heads in _grouped((w, group[0]) for group in GROUPS for w in group).items()
}
"""Maps a word to the first word of each of its synonym groups. Words without a synonym are not in it."""

_KINDS = {
    "animal": """dog cat fish bird horse cow pig sheep goat chicken duck rabbit hamster lizard snake turtle frog mouse
        rat lobster crab spider ant bee wasp fly snail owl eagle parrot lion tiger bear wolf fox deer elephant monkey
        gorilla whale dolphin shark octopus penguin puppy kitten camel donkey goose turkey iguana gecko ferret worm""",
    "body": """head face eye ear nose mouth tooth teeth tongue lip chin jaw neck throat shoulder arm elbow wrist hand
        finger thumb chest breast back stomach belly hip butt leg knee ankle foot feet toe heel skin hair nail bone
        muscle heart lung liver kidney brain blood eyebrow forehead cheek thigh calf groin hamstring pelvis""",
    "colour": "red blue green yellow orange purple pink brown black white gray grey silver gold",
    "family": """mother father parent son daughter brother sister husband wife uncle aunt nephew niece cousin
        grandfather grandmother grandson granddaughter boyfriend girlfriend boss roommate neighbor neighbour""",
    "food": """bread rice pasta pizza burger yogurt cheese milk butter egg cereal banana apple orange grape lemon corn
        potato tomato carrot onion garlic chocolate sugar salt pepper honey oil liver beef pork bacon ham steak salmon
        tuna shrimp coffee tea beer wine whiskey vodka water juice soda soup salad insulin avocado peanut almond""",
    "country": """usa us america canada mexico brazil argentina chile peru colombia uk britain england scotland wales
        ireland france germany spain italy portugal netherlands belgium switzerland austria poland sweden norway denmark
        finland russia ukraine greece turkey egypt israel iran iraq india pakistan bangladesh china japan korea vietnam
        thailand indonesia malaysia singapore philippines australia zealand nigeria kenya ghana ethiopia africa europe
        asia antarctica cuba syria afghanistan nepal""",
    "nationality": """american canadian mexican brazilian british english scottish irish french german spanish italian
        portuguese dutch belgian swiss austrian polish swedish norwegian danish finnish russian ukrainian greek turkish
        egyptian israeli iranian iraqi indian pakistani bangladeshi chinese japanese korean vietnamese thai indonesian
        malaysian australian nigerian kenyan ethiopian african european asian arabic hebrew latin hindi tamil
        mandarin""",
    "city": """london paris berlin madrid rome vienna amsterdam moscow tokyo beijing delhi mumbai bangalore pune chennai
        hyderabad kolkata sydney toronto chicago boston seattle dallas houston miami dublin lisbon prague oslo""",
    "language": """python java javascript typescript rust go golang ruby perl php swift kotlin scala haskell fortran
        cobol matlab julia c lua sql r""",
    "tool": """numpy scipy pandas pytorch tensorflow keras django flask react angular vue docker kubernetes redis
        postgres postgresql mysql sqlite mongodb oracle linux windows ubuntu debian fedora macos android ios iphone ipad
        chrome firefox safari edge gmail outlook yahoo google facebook instagram twitter whatsapp snapchat youtube
        netflix spotify amazon ebay paypal uber quora linkedin reddit microsoft apple samsung excel git github gitlab
        aws azure gcp nginx apache""",
    "job": """doctor nurse lawyer teacher engineer accountant actor actress artist singer musician painter writer
        journalist editor producer director economist scientist researcher analyst activist academic adviser advisor
        administrator agent architect assistant astronaut attorney auditor author banker barber builder candidate
        carpenter chef cook consultant dentist designer developer electrician entrepreneur escort executive farmer
        firefighter historian intern interpreter inventor investigator investor judge librarian mechanic model
        organizer photographer physicist pilot plumber poet policeman politician president professor programmer
        psychologist psychiatrist secretary soldier surgeon tailor translator waiter waitress goalkeeper guitarist
        fighter striker""",
    "sport": """soccer football tennis golf basketball baseball hockey cricket rugby volleyball boxing swimming running
        cycling skiing chess poker yoga surfing badminton judo karate wrestling snowboarding""",
    "unit": """mm cm m km inch inches foot feet yard mile kilometer kilometre meter metre gram kilogram kg lb pound
        ounce ton liter litre gallon pint celsius fahrenheit kelvin second minute hour day week month year byte kb mb gb
        tb volt watt ampere dollar euro yen rupee franc bitcoin""",
    "direction": "north south east west left right up down northern southern eastern western",
    "planet": "mercury venus earth mars jupiter saturn uranus neptune pluto moon sun",
    "element": "hydrogen helium oxygen nitrogen carbon iron copper zinc lead silver gold sodium potassium calcium",
    "instrument": "guitar piano violin drum flute trumpet cello saxophone harp bass keyboard clarinet",
    "faith": "christian christianity muslim islam jewish judaism hindu hinduism buddhist buddhism atheist catholic "
    "protestant sikh",
    "side": "cause effect symptom cure prevention history",
    "extent": "size weight height length width depth age color shape price location",
    "vehicle": "bike motorcycle truck bus train tram ship boat plane helicopter",
    "meal": "breakfast lunch dinner supper brunch",
    "degree": "bachelor master phd mba diploma certificate",
    "size": "small medium large",
}
_KINDS_OF = _grouped((word, kind) for kind, line in _KINDS.items() for word in line.split())
KIND: Final = {word: frozenset(kinds) for word, kinds in _KINDS_OF.items()}
"""Maps a word to its kinds (an orange: a colour and a food); two different words of one kind are never equivalent."""

VAGUE: Final = word_set(
    """good best great nice well better easy easily simple simply proper properly effective effectively
    efficient efficiently useful possible various several different certain specific particular general basic
    main major actual current overall own right suitable appropriate quick quickly fast currently usually
    generally typically commonly normally particularly thing stuff kind sort type way method something anything
    everything someone anyone people person one guy get do make take go have use find know want need like tell
    give show explain describe say mean think happen work exist help let try come look see keep start recommend
    suggest provide list name concise brief clear clearly step tip advice idea option many much lot successfully
    correctly completely entire entirely following associated related respective involved available existing
    immediately order"""
)
"""Content words that can be added or removed with little effect on an answer."""

FILLERS: Final = word_set(
    """actually really literally basically truly indeed exactly simply just please kindly honestly seriously
    definitely certainly obviously ever even also else possibly maybe perhaps then so well am be being been"""
)
"""Words that can be added or removed without effect on an answer."""

_PHRASES = """
turn on > enable; switch on > enable; turned on > enabled; turn off > disable; switch off > disable; turned off >
disabled; get rid of > remove; log in > login; sign in > login; log into > login; sign into > login; log out >
logout; sign out > logout; sign up > signup; set up > setup; look up > find; find out > find; give up > quit; carry
out > execute; bring about > cause; figure out > determine; work out > determine; put off > postpone; call off >
cancel; go ahead with > proceed; proceed with > proceed; shut down > disable; scale up > increase; scale down >
decrease; cut down > reduce; cut back > reduce; speed up > accelerate; slow down > decelerate; make sure > ensure;
as well as > and; due to > because; because of > because; owing to > because; prior to > before; in advance of >
before; subsequent to > after; following on > after; up to date > updated; well known > famous; known for > famous
for; is it possible to > can i; is there a way to > howto; is there any way to > howto; are there ways to > howto;
is there some way to > howto; what happens if > what if; how come > why; what is the reason > why; what is the
reason why > why; what are the reasons > why; for what reason > why; what causes > why; how much does it cost to >
cost of; at what time > when; what time > when; in which year > when; in what year > when; in which place > where;
what place > where; which person > who; what person > who; take place > happen; a lot of > many; lots of > many;
plenty of > many; a number of > several; a great deal of > much; a couple of > several; a few > some; in case > if;
provided that > if; as long as > if; roll back > rollback; come up with > suggest; think of > think; put together >
create; get in touch with > contact; reach out to > contact; look for > find; point out > mention; leave out > omit;
take out > remove; get better at > improve; become better at > improve; have to > must; has to > must; had to >
must; need to > must; ought to > should; able to > can; supposed to > should; used to be > formerly; no longer >
not; as soon as > when; deal with > handle; cope with > handle; put on > wear; in spite of > despite; instead of >
instead; in front of > before; next to > beside; on top of > over; out of > from; such as > like; more than > over;
less than > under; at least > min; at most > max; united states of america > usa; united states > usa; united
kingdom > uk; great britain > uk; new york city > newyork; new york > newyork; cell phone > phone; mobile phone >
phone; web site > website; web page > webpage; e mail > email; side effect > sideeffect; side effects > sideeffects;
say no to > reject; said no to > rejected; says no to > rejects; put on hold > suspend; turn down > reject;
credit card > creditcard; operating system > os; machine learning > ml; artificial intelligence > ai; et cetera >
etc; bring down > reduce
"""
PHRASES: Final = {
    source.strip(): target.strip()
    for source, _, target in (" ".join(line.split()).partition(">") for line in _PHRASES.split(";"))
}
"""Maps a phrase to the word that means the same."""

_IRREGULAR = """
bought buy; brought bring; built build; broke break; broken break; caught catch; chose choose; chosen choose; came
come; done do; drew draw; drawn draw; drank drink; drunk drink; drove drive; driven drive; ate eat; eaten eat; fell
fall; fallen fall; felt feel; fought fight; found find; flew fly; flown fly; forgot forget; forgotten forget; froze
freeze; frozen freeze; gave give; given give; went go; gone go; grew grow; grown grow; heard hear; held hold; kept
keep; knew know; known know; laid lay; led lead; left leave; lent lend; lost lose; made make; meant mean; met meet;
paid pay; ran run; said say; saw see; seen see; sold sell; sent send; sang sing; sung sing; sat sit; slept sleep;
spoke speak; spoken speak; spent spend; stood stand; stole steal; stolen steal; swam swim; took take; taken take;
taught teach; told tell; thought think; threw throw; thrown throw; understood understand; won win; wore wear; worn
wear; wrote write; written write; hidden hide; children child; people person; men man; women woman; feet foot; teeth
tooth; mice mouse; geese goose; lives life; wives wife; choice choose; decision decide; analysis analyze; analyses
analyze; growth grow; death die; dying die; lying lie; loss lose; sale sell; thought think; belief believe; proof
prove; flight fly; speech speak; success succeed; advice advise; arrival arrive; approval approve; refusal refuse;
denial deny; removal remove; renewal renew; proposal propose; arrangement arrange; payment pay; failure fail;
closure close; departure depart; explanation explain; description describe; operation operate; summary summarize;
response respond; recommendation recommend; notification notify; acceptance accept; difference differ; knowledge
know; maintenance maintain; calculation calculate; marketing marketing; accounting accounting; building building;
engineering engineering; programming programming; housing housing; lighting lighting; clothing clothing; painting
painting; drawing drawing; meeting meeting; training train; university university; universal universal; organ organ;
organic organic; number number; numb numb; order order; water water; paper paper; computer computer; power power;
offer offer; letter letter; matter matter; summer summer; winter winter; corner corner; server server; user user;
customer customer; answer answer; enter enter; remember remember; consider consider; deliver deliver; cover cover;
discover discover; recover recover; hour hour; tower tower; flower flower; layer layer; tester tester; counter
counter; poster poster; master master; letting letting; need need; seed seed; feed feed; speed speed; indeed indeed;
exceed exceed; proceed proceed; succeed succeed; breed breed; bleed bleed; bring bring; string string; spring
spring; thing thing; during during; king king; wing wing; ring ring; sing sing; evening evening; morning morning;
family family; reply reply; apply apply; supply supply; multiply multiply; italy italy; july july; assembly
assembly; monopoly monopoly; butterfly butterfly; species species; series series; news news; business business;
witness witness; harness harness; moment moment; comment comment; document document; argument argument; element
element; segment segment; apartment apartment; department department; government government; environment
environment; climate climate; private private; plate plate; state state; estate estate; chocolate chocolate; senate
senate; station station; nation nation; ration ration; vacation vacation; location location; education education;
section section; function function; option option; action action; auction auction; fiction fiction; portion portion;
mention mention; motion motion; caution caution; question question; condition condition; position position; mission
mission; passion passion; pension pension; version version; session session; fashion fashion; quite
quite; site site; cone cone; pale pale; edition edition; unite unite; presentation presentation; validate validate;
validation validate
"""
ROOTS: Final = dict(entry.split() for entry in _IRREGULAR.split(";"))
"""Maps an irregular form to its base form."""

_ANTONYMS = """
approve reject; approve cancel; accept decline; keep delete; keep cancel; keep discontinue; verify cancel; verify
reject; arrange cancel; arrange postpone; arrange omit; verify postpone; increase decrease; prolong shorten;
continue stop; continue shorten; start stop; start cancel; enable disable; include exclude; include omit; include
delete; add delete; support oppose; endorse oppose; promote oppose; agree disagree; positive negative; pass fail;
hire fire; gain lose; win lose; import export; borrow lend; push pull; early late; rich poor; strong weak; love
hate; like dislike; buy sell; open close; lock unlock; connect disconnect; install uninstall; upgrade downgrade;
attach detach; merge delete; merge split; combine split; allow block; allow restrict; allow deny; allow forbid;
allow prohibit; allow ban; grant deny; grant reject; grant refuse; hide display; reveal hide; publish hide;
accelerate delay; expand shrink; expand collapse; expand shorten; encode decode; encrypt decrypt; compress
decompress; zip unzip; upload download; send receive; follow unfollow; subscribe unsubscribe; mute unmute; pin
unpin; archive restore; backup restore; delete restore; commit rollback; publish rollback; update rollback; raise
lower; ascend descend; ascending descending; hot cold; warm cold; light dark; light heavy; day night; morning
evening; male female; man woman; boy girl; husband wife; king queen; minimize maximize; minimise maximise; min max;
first last; top bottom; front back; input output; internal external; inside outside; public private; valid invalid;
legal illegal; guilty innocent; paid unpaid; read unread; online offline; active inactive; active passive; active
dormant; alive dead; awake asleep; asleep awake; safe danger; safe dangerous; easy difficult; simple complex; cheap
expensive; clean dirty; wet dry; full empty; soft hard; loud quiet; thick thin; wide narrow; deep shallow; true
false; real fake; correct wrong; good bad; best bad; good terrible; better worse; happy sad; big small; tall short;
long short; old young; old new; quick slow; more less; more fewer; many few; most least; much little; above below;
over under; up down; left right; on off; in out; with without; before after; inbound outbound; incoming outgoing;
entry exit; arrive leave; arrive depart; come go; marry divorce; import remove; hire dismiss; join leave; stay
leave; stay go; sleep wake; sit stand; cry laugh; freeze melt; boil freeze; float sink; lend borrow; teach learn;
ask answer; create destroy; create delete; build destroy; success failure; succeed fail; profit loss; asset
liability; debit credit; benefit disadvantage; advantage disadvantage; advantage risk; benefit risk; pro con;
strength weakness; friend enemy; peace war; love fear; supply demand; host guest; client server; frontend backend;
even odd; vertical horizontal; singular plural; past future; ancient modern; temporary permanent; mandatory
optional; required optional; solvent insolvent; eligible ineligible; afford bankrupt; adopt abandon; pursue abandon;
pursue drop; file drop; file cancel; proceed cancel; proceed stop; proceed drop; sign decline; sign refuse; sign
reject; settle litigate; attend skip; attend omit; attend cancel; attend miss; book cancel; reserve cancel; reserve
postpone; fix omit; repair ignore; fix ignore; escalate close; escalate ignore; prioritise defer; prioritize defer;
prioritize postpone; execute stop; execute cancel; deploy stop; confirm deny; acknowledge ignore; remember forget;
praise criticize; praise criticise; compliment insult; introvert extrovert; optimist pessimist; optimistic
pessimistic; humble arrogant; modest arrogant; generous greedy; generous stingy; patient impatient; lazy
hardworking; idle energetic; calm nervous; calm anxious; brave cowardly; brave afraid; religious secular; liberal
conservative; visible invisible; smart stupid; smart dumb; beautiful ugly; rude polite; kind cruel; honest
dishonest; guilty clean
"""
ANTONYMS: Final = tuple((left, right) for left, right in (pair.split() for pair in _ANTONYMS.split(";")))
"""Pairs of opposites; pairs of their synonyms are derived."""

_TOWARDS = """
increase raise boost grow enlarge expand extend lengthen prolong lift strengthen accelerate double triple maximize
higher upward upwards forward more longer bigger larger keep retain maintain preserve hold continue proceed resume
renew restore reinstate reactivate rebuild start begin launch initiate open create build add include insert append
attach implement establish adopt introduce enable activate allow permit accept approve agree grant authorize support
endorse promote advocate favor favour defend back confirm attend join sign install display show reveal highlight
emphasize publish release deploy merge commit upload escalate prioritize prioritise pass win accelerate encourage
protect uphold praise positive accord incorporate
"""
_AWAY = """
decrease reduce lower lessen diminish cut shrink shorten narrow weaken slow halve minimize lower downward downwards
fewer shorter smaller remove delete drop discard erase eliminate purge exclude omit skip cancel abort revoke withdraw
suspend terminate end stop halt cease discontinue quit pause close abandon disable deactivate block forbid ban prohibit
prevent restrict deny reject decline refuse oppose resist against avoid ignore waive hide conceal mute suppress revert
rollback undo uninstall detach defer postpone delay sell liquidate destroy dismiss fail lose discourage criticize
criticise negative halve absent lack
"""
TOWARDS: Final = frozenset(_TOWARDS.split())
"""Words for more, for continuing, for yes."""
AWAY: Final = frozenset(_AWAY.split())
"""Words for less, for an end, for no. A pair is refused if one side's remaining words are here, the other's TOWARDS."""
